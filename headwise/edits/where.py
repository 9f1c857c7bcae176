"""Where a call of attention is made: in which layer, which step, and of which tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from headwise.text import Tokens


@dataclasses.dataclass(frozen=True, eq=False)
class Where:
    """What an edit is told of a call beside the call itself.

    Positions are counted for each example from its first real token; padding before it is at -1. They stay the same in
    every step of a generation, whatever the cache drops.
    """

    site: str  # the path of the module
    kind: Literal["self", "cross"]
    step: int  # 0 for the first pass of a sequence
    batch: int
    heads: int  # of the queries
    queries: Tensor  # [B, Q], the position of each query
    keys: Tensor  # [B, K], the position of each key
    shift: int  # the place of the first query among the keys
    lengths: Tensor  # [B], how many tokens the first pass of the sequence had; of cross-attention the target
    key_lengths: Tensor  # [B], the same of the keys' sequence
    tokens: Sequence[Tokens] | None = None  # of each example, from its first real token, where they are known
    key_tokens: Sequence[Tokens] | None = None

    @property
    def device(self) -> torch.device:
        """Of the call's tensors."""
        return self.queries.device
