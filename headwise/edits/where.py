"""Where a call (one attention computation) is: its layer, its step, and its tokens."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from headwise.call import AttentionCall, Share
from headwise.capture.layout import share_heads
from headwise.text import Tokens


class Met:
    """Remembers which of the positions that edits select were in a call. Positions that were in none are an error."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], str] = {}  # (argument, position) -> the message; "" = it was in a call

    def note(self, what: str, choice: str, met: bool, message: str) -> None:
        """Note whether a call has the positions that an edit selects; `message`: the error if no call has them."""
        key = what, choice
        self._said[key] = "" if met or self._said.get(key) == "" else message

    def missing(self) -> list[str]:
        """The messages for positions that were in no call."""
        return [message for message in self._said.values() if message]


@dataclasses.dataclass(frozen=True, eq=False)
class Where:
    """Where a call is: its layer, its step and its tokens. An edit gets it together with the call.

    Positions are counted for each example from its first real token; padding before it is at -1. A token keeps its
    position in every step of a generation, whatever the cache drops.
    """

    site: str  # the path of the module
    kind: Literal["self", "cross"]
    stack: Literal["encoder", "decoder"]  # "decoder" = no query sees later keys of its sequence, or cross-attention
    step: int  # 0 for the passes over the prompt, then + 1 for each pass
    batch: int
    repeats: int  # rows of the batch for each example: beams, or several sequences of one prompt
    heads: int  # the number of query heads
    queries: Tensor  # [B, Q], the position of each query
    keys: Tensor  # [B, K], the position of each key
    shift: int  # the place of the first query among the keys
    lengths: Tensor  # [B], how many tokens the prompt has; for cross-attention, of the target
    key_lengths: Tensor  # [B], the same for the sequence of the keys
    nth: int | None  # how often this layer ran before in this pass of the model; None = not known
    original: AttentionCall = dataclasses.field(repr=False)  # the call as the model made it
    share: Share | None = None  # for a call of a longer sequence, of which this process computes some rows
    drafts: bool = False  # whether this pass also reads tokens after the prompt, which may be rejected
    tokens: Sequence[Tokens] | None = None  # for each example, from its first real token, if they are known
    key_tokens: Sequence[Tokens] | None = None
    met: Met = dataclasses.field(default_factory=Met)
    normal: Callable[[str], str] = str  # a text as the tokenizer reads it

    @property
    def name(self) -> str:
        """The path of the layer; if the layer runs several times in one pass (ALBERT), with the number of the run."""
        return self.site if not self.nth else f"{self.site} (run {self.nth + 1})"

    @functools.cached_property
    def key_heads(self) -> int:
        """The number of key/value heads, also where the model repeats them for their query heads."""
        return share_heads(self.original.k, self.original.v)[0].shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the call's tensors."""
        return self.queries.device
