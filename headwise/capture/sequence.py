"""One record for a whole generation: the rows of the prompt and of every decoding step; the keys are kept once.

The keys of a step are those of the previous step and a few new ones, for every kind of cache: it grows (dynamic), it is
a window that moves (sliding), or it is a buffer that fills up (static; its unfilled end was removed before). So a step
continues a sequence if its older keys are the sequence's last ones, bit by bit. In a beam search they may be those of
another beam: `_row_origin` and `_key_origin` hold, for each position of each beam, the beam of its step it comes from.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import torch
from torch import Tensor

from headwise.call import AttentionCall, Scores
from headwise.capture.rows import MaskRows
from headwise.errors import RecordError


class Sequence:
    """The rows of one call site over the steps of a generation."""

    def __init__(self, call: AttentionCall, *, values: bool) -> None:
        self._first = call
        self._versions = [x._version for x in (call.q, call.k, call.v) if not x.is_inference()]
        self._rows = _Growing(call.q)
        self._keys = _Growing(call.k)
        self._vals = _Growing(call.v) if values else None
        self._mask = MaskRows(call.mask, *call.shape[2:])
        self._biases = [call.bias]
        self._row_origin: Tensor | None = None  # [B, Q]; None = every beam comes from itself
        self._key_origin: Tensor | None = None  # [B, K]
        self.steps = [call.k.shape[2]]  # how many keys there were after each step

    @property
    def continued(self) -> bool:
        """Whether a step has followed the first call."""
        return len(self.steps) > 1

    def extend(self, call: AttentionCall, *, among: Tensor | None = None) -> Tensor | None:
        """Add the rows of a step; returns which beams each example may continue, bool [B, B]; None if it is none.

        Beams with equal keys are interchangeable. Without `among` the keys grow (self-attention). With it the keys are
        those of another sequence and do not change, and `among` [B, B] is what the model's self-attention returned for
        this step.
        """
        if not self._fits(call):
            return None
        grows = among is None
        new = call.q.shape[2] if grows else 0
        old = call.k.shape[2] - new
        if old <= 0 or old > self._keys.length or (not grows and old != self._keys.length):
            return None
        candidates = self._candidates(call.k[:, :, :old], among)
        if not bool(candidates.any(1).all()):
            return None
        if self._first_changed():
            raise RecordError(
                "the queries or keys of the first step were changed in place before the next step, so its record would "
                "be wrong"
            )
        self._follow(candidates)
        self._row_origin = _grown(self._row_origin, call.q.shape[2])
        self._key_origin = _grown(self._key_origin, new)
        self._rows.append(call.q)
        if new:
            self._keys.append(call.k[:, :, old:])
            if self._vals is not None:
                self._vals.append(call.v[:, :, old:])
        self._mask.append(call.mask, call.q.shape[2], call.k.shape[2], self._keys.length)
        self._biases.append(call.bias)
        self.steps.append(self._keys.length)
        return candidates

    def call(self, beams: Tensor | None = None) -> AttentionCall:
        """All steps as one call; with `beams` [N, steps] (the row of each step's batch), of these beams."""
        first = self._first
        if not self.continued and beams is None:
            return first
        row_origin, key_origin = self._row_origin, self._key_origin
        if beams is not None:
            row_origin, key_origin = self._origins_of(beams.to(first.q.device))
        queries, keys = _gather(self._rows, row_origin), _gather(self._keys, key_origin)
        values = keys[..., :0] if self._vals is None else _gather(self._vals, key_origin)
        q_len, k_len = self._rows.length, self._keys.length
        mask = self._mask.mask(q_len, k_len)
        bias = None if all(x is None for x in self._biases) else self._bias(q_len, k_len)
        if beams is not None:
            q_len, k_len = queries.shape[2], keys.shape[2]
            mask = self._mask.of_beams(mask, beams, self.steps[: beams.shape[1]])
            bias = bias if bias is None else bias[:, :, :q_len, :k_len]
        return dataclasses.replace(first, q=queries, k=keys, v=values, mask=mask, bias=bias)

    @property
    def nbytes(self) -> int:
        """What is kept, in bytes."""
        parts = (self._rows, self._keys, self._vals)
        return sum(part.nbytes for part in parts if part is not None)

    def _fits(self, call: Scores) -> bool:
        first = self._first
        same = first.scale == call.scale and first.softcap == call.softcap
        sinks = (first.sinks is None) == (call.sinks is None)
        if first.sinks is not None and call.sinks is not None:
            sinks = torch.equal(first.sinks, call.sinks)
        shapes = first.q.shape[:2] == call.q.shape[:2] and first.k.shape[:2] == call.k.shape[:2]
        return same and sinks and shapes and first.q.shape[3] == call.q.shape[3] and first.q.dtype == call.q.dtype

    def _first_changed(self) -> bool:
        if self._rows.owned:
            return False
        first = self._first
        return self._versions != [x._version for x in (first.q, first.k, first.v) if not x.is_inference()]

    def _candidates(self, older: Tensor, among: Tensor | None) -> Tensor:
        """[B, B]: whether example i of a step has the keys of beam j of this sequence."""
        tail = _gather(self._keys, self._key_origin)[:, :, -older.shape[2] :]
        if (among is None or bool(among.diagonal().all())) and torch.equal(tail, older):
            return torch.eye(
                len(older), dtype=torch.bool, device=older.device
            )  # the usual case: each example continues itself
        possible = [[True] * len(older)] * len(older) if among is None else among.tolist()
        same = [
            [may and torch.equal(mine, row) for may, mine in zip(row_may, tail, strict=True)]
            for row_may, row in zip(possible, older, strict=True)
        ]
        return torch.tensor(same, device=older.device)

    def _follow(self, candidates: Tensor) -> None:
        batch = torch.arange(len(candidates), device=candidates.device)
        if bool(candidates.diagonal().all()):
            return
        parents = candidates.int().argmax(1)
        if self._row_origin is None or self._key_origin is None:
            self._row_origin = batch[:, None].expand(-1, self._rows.length)
            self._key_origin = batch[:, None].expand(-1, self._keys.length)
        self._row_origin, self._key_origin = self._row_origin[parents], self._key_origin[parents]
        self._mask.reorder(parents)

    def _origins_of(self, beams: Tensor) -> tuple[Tensor, Tensor]:
        """[N, Q] and [N, K]: which row of its step's batch every row and key of the beams [N, steps] comes from."""
        beams = beams.clamp(min=0)
        # zip leaves out the steps after the end of the longest of these beams.
        keys = [self.steps[0], *(after - before for before, after in pairwise(self.steps))]
        rows = [q_len for q_len, _, _ in self._mask.steps]
        spread = [
            torch.cat(
                [beam[:, None].expand(-1, count) for beam, count in zip(beams.unbind(1), counts, strict=False)], 1
            )
            for counts in (rows, keys)
        ]
        return spread[0], spread[1]

    def _bias(self, q_len: int, k_len: int) -> Tensor:
        known = [x[(None,) * (4 - x.ndim)] for x in self._biases if x is not None]
        lead = [max(x.shape[i] for x in known) for i in (0, 1)]
        width = 1 if all(x.shape[3] == 1 for x in known) else k_len
        whole = torch.zeros(*lead, q_len, width, dtype=known[0].dtype, device=known[0].device)
        row = 0
        for x, (q, k, last) in zip(self._biases, self._mask.steps, strict=True):
            if x is not None:
                columns = slice(0, 1) if width == 1 else slice(last - k, last)
                whole[:, :, row : row + q, columns] = x
            row += q
        return whole


def _gather(buffer: _Growing, origin: Tensor | None) -> Tensor:
    """The positions of each beam, each from its origin: [B, ·, length, ·]."""
    if origin is None:
        return buffer.tensor
    return buffer.tensor[origin, :, torch.arange(origin.shape[1], device=origin.device)].transpose(1, 2)


def _grown(origin: Tensor | None, new: int) -> Tensor | None:
    if origin is None:
        return None
    batch = torch.arange(len(origin), device=origin.device)
    return torch.cat([origin, batch[:, None].expand(-1, new)], dim=1)


class _Growing:
    """A tensor [B, ·, length, ·] that grows in length; its buffer is at most twice as long."""

    def __init__(self, first: Tensor) -> None:
        self._buffer, self.length, self.owned = first, first.shape[2], False

    @property
    def tensor(self) -> Tensor:
        return self._buffer[:, :, : self.length]

    @property
    def nbytes(self) -> int:
        return self._buffer.numel() * self._buffer.element_size()

    def append(self, more: Tensor) -> None:
        total = self.length + more.shape[2]
        if not self.owned or total > self._buffer.shape[2]:
            room = max(total, min(2 * self.length, self.length + 4096), 16)
            batch, heads, _, width = self._buffer.shape
            grown = self._buffer.new_empty(batch, heads, room, width)
            grown[:, :, : self.length] = self.tensor
            self._buffer, self.owned = grown, True
        self._buffer[:, :, self.length : total] = more
        self.length = total
