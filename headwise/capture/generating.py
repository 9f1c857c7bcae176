"""Decides, inside `generate` of transformers, which record a step belongs to.

A step normally continues the record of a sequence (sequence.py). Two more cases are known. Without a cache, a pass over
one more token computes all rows again, and replaces the record. With a quantised cache, the older keys of a step differ
from the keys in the record, so that the step belongs to no record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from headwise import masks
from headwise.call import AttentionCall, Scores
from headwise.masks.additive import UNIFORM

if TYPE_CHECKING:
    from headwise.capture.entry import Entry
    from headwise.capture.keep import Keeper

OTHER_KEYS = (
    "a step of the generation read other keys than the steps before had computed (from a quantised cache), or these "
    "attended to tokens that were then rejected, so one record cannot hold them all. What is kept ends before it. Run "
    "the model on the whole sequence, or generate with another cache and without drafts"
)
_OPEN_ROWS = (
    "rows of padding attended to all keys alike, to the empty part of a static cache too; their records leave that out"
)


# What happens to a computation that does not continue the record of its module: it begins another record; or
# replaces the pass before, whose rows it computes again; or is refused because of `OTHER_KEYS`.
Fate = Literal["begins", "replaces", "refused"]


class Generating(threading.local):
    """The state of the call of `generate` that runs in this thread."""

    def __init__(self) -> None:
        self.run: int | None = None
        self.in_steps = False  # whether its steps of one token have begun
        self.depth = 0  # how many calls of `generate` run inside one another: the inner ones write drafts
        self.inputs: Mapping[str, Any] = {}  # what the outermost call was given
        self._runs = 0

    @property
    def drafts(self) -> bool:
        """Whether an assistant model, which writes drafts for `generate`, is running. It may be the model itself."""
        return self.depth > 1

    @contextlib.contextmanager
    def running(self, inputs: Mapping[str, Any]) -> Iterator[bool]:
        """Return a context for one call of `generate` with these arguments; it gives True for the outermost call."""
        outermost = self.run is None
        if outermost:
            self.run, self._runs, self.in_steps, self.inputs = self._runs, self._runs + 1, False, inputs
        self.depth += 1
        try:
            yield outermost
        finally:
            self.depth -= 1
            if outermost:
                self.run, self.in_steps, self.inputs = None, False, {}

    def fate(self, before: Entry | None, call: AttentionCall, keeper: Keeper, *, cross: bool) -> Fate:
        """Decide whether a call begins a record, replaces `before` (its module's last record), or is refused.

        It has been found not to continue `before`. `cross`: whether it is cross-attention.
        """
        if before is None or self.run is None or before.run != self.run:
            return "begins"
        batch, heads, rows, keys = before.kept.shape
        q_len, k_len = call.shape[2:]
        if call.shape[:2] != (batch, heads):
            return "begins"
        if q_len == rows + 1 and (k_len == keys if cross else k_len == keys + 1 == q_len):
            return "replaces"
        # A model may also read several things with one module, such as images.
        follows = before.kept.has_keys(keeper.step(call).k) if cross else q_len < k_len
        return "refused" if follows else "begins"


def find_padding_rows(call: Scores) -> Tensor | None:
    """Find the queries that attend to all keys equally, as padding in eager models: bool [B|1, H|1, Q]; None = none."""
    bias = call.bias
    if bias is None or bias.ndim != 4 or bias.shape[2:] != (call.shape[2], 1):
        return None
    rows = bias[..., 0] <= UNIFORM
    return rows if bool(rows.any()) else None


def without_empty_buffer(call: AttentionCall, *, copy: bool = False) -> tuple[AttentionCall, str]:
    """Remove the unfilled end of a static cache from a call: the last keys, which are 0 and forbidden.

    Returns (the call, a note or ""). The note says that rows of padding attend to these keys nevertheless. With `copy`,
    the keys and values of a first step are copied even if the buffer is full, because the model may write to it later.
    """
    padding = find_padding_rows(call)
    if call.slopes is not None:  # distances are counted from the last key
        return call, ""
    used = used_keys(call)
    filled = call.shape[3] if used is None or not bool(used.any()) else int(used.any(0).any(0).nonzero().max()) + 1
    if filled == call.shape[3] or bool(call.k[:, :, filled:].any()):
        if copy and 1 < call.shape[2] == call.shape[3]:
            call = dataclasses.replace(call, k=call.k.clone(), v=call.v.clone())
        return call, ""
    assert call.mask is not None
    device = call.q.device
    rows, cols = torch.arange(call.shape[2], device=device), torch.arange(filled, device=device)
    bias = call.bias
    if bias is not None and bias.ndim and bias.shape[-1] > 1:
        bias = bias[..., :filled]
    # Copies, because the buffer will be written to.
    k, v = call.k[:, :, :filled].clone(), call.v[:, :, :filled].clone()
    mask = masks.recognise(call.mask.cells(rows, cols))
    mask = None if mask is None else mask.aligned(call.shape[2], filled)
    return dataclasses.replace(call, k=k, v=v, bias=bias, mask=mask), _OPEN_ROWS * (padding is not None)


def used_keys(call: Scores) -> Tensor | None:
    """Find the keys to which queries other than padding may attend: bool [B|1, H|1, K]; None = all keys."""
    padding = find_padding_rows(call)
    if padding is None:
        return call.used_keys
    if call.mask is None:
        return None
    cols = torch.arange(call.shape[3], device=call.q.device)
    parts = [
        (call.mask.cells(rows, cols) & ~padding[:, :, rows, None]).any(2)
        for rows in torch.arange(call.shape[2], device=call.q.device).split(256)
    ]
    return torch.stack(parts).any(0)
