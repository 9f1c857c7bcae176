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
    """Remembers which positions that edits select occurred in a call; a position that never occurred is an error."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], str] = {}  # (argument, position) -> the message; "" = it was in a call

    def note(self, what: str, choice: str, met: bool, message: str) -> None:
        """Note whether a call has the position `choice` that an edit selects. `message`: the error if no call has."""
        key = what, choice
        self._said[key] = "" if met or self._said.get(key) == "" else message

    def missing(self) -> list[str]:
        """Return the error messages for positions that occurred in no call."""
        return [message for message in self._said.values() if message]


@dataclasses.dataclass(frozen=True, eq=False)
class Where:
    """Describes where in a run of the model a call is: its layer, its step and its tokens. Edits get it with the call.

    Positions are counted for each example from its first real token; padding has the position -1. A token has the same
    position in every step of a generation, whatever the cache drops.
    """

    site: str  # the path of the module
    kind: Literal["self", "cross"]
    stack: Literal["encoder", "decoder"]  # "decoder" = causal self-attention (no query sees later keys), or cross
    step: int  # 0 for the passes over the prompt, then + 1 for each pass
    batch: int
    repeats: int  # rows of the batch for each example: beams, or several sequences of one prompt
    heads: int  # the number of query heads
    queries: Tensor  # [B, Q], the position of each query
    keys: Tensor  # [B, K], the position of each key
    shift: int  # the index among the keys with which the first query is aligned
    lengths: Tensor  # [B], the number of tokens of the prompt; in cross-attention, of the target, which has the queries
    key_lengths: Tensor  # [B], the same number for the sequence of the keys
    nth: int | None  # how often this layer ran before in this pass of the model; None = not known
    original: AttentionCall = dataclasses.field(repr=False)  # the call as the model made it
    share: Share | None = None  # which rows of a longer call this process computes; None = the whole call
    drafts: bool = False  # whether this pass also reads tokens after the prompt, which may be rejected
    tokens: Sequence[Tokens] | None = None  # for each example, from its first real token, if they are known
    key_tokens: Sequence[Tokens] | None = None
    met: Met = dataclasses.field(default_factory=Met)
    normal: Callable[[str], str] = str  # normalises a text as the tokenizer does

    @property
    def name(self) -> str:
        """The path of the layer; if the layer runs several times in one pass (ALBERT), with the number of the run."""
        return self.site if not self.nth else f"{self.site} (run {self.nth + 1})"

    @functools.cached_property
    def key_heads(self) -> int:
        """The number of distinct key/value heads, even if the model repeats them, one copy for each query head."""
        return share_heads(self.original.k, self.original.v)[0].shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the call's tensors."""
        return self.queries.device
