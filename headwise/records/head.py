"""One head of one example of a record: its scores, some rows at a time, in pieces that fit the processor's cache.

Where the mask forbids a whole block nothing is computed, and single cells are only looked at where it cuts through one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.masks.picked import Picked
from headwise.native.attend import FEW, is_few, look, refuse
from headwise.records.tiles import forbid, forbidden_keys
from headwise.softmax import Normaliser
from headwise.tiles import WIDTH, Run, runs_of_rows

if TYPE_CHECKING:
    from headwise.records.record import AttentionRecord

# Cells of a piece: 2 MB of float32, which stay in the cache while they are asked for everything.
CELLS = 2**19

# Fewer keys are as quick by `pieces`, whose scores the weights are made of.
LONG_ROW = 2**15


class Head:
    """The scores of one head of one example of a record."""

    def __init__(self, record: AttentionRecord, example: int, head: int) -> None:
        self.scores = record.call.part(b=slice(example, example + 1), heads=slice(head, head + 1))
        self.dtype, self.mask = self.scores.dtype, record.mask
        self.b = example if record.mask is not None and record.mask.batch else None
        self.h = head if record.mask is not None and record.mask.heads else None

    def pieces(self, rows: Tensor, first: int = 0, past: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """The scores of `rows` and the keys [first, past), -inf where forbidden, as (first key, [rows, keys]).

        Rows that stand together are quickest. Keys that none of them may attend to may be left out.
        """
        if not len(rows):
            return
        past = self.scores.shape[3] if past is None else past
        runs = runs_of_rows(self.mask, self.b, self.h, int(rows.min()), int(rows.max()) + 1, first, past)
        step = max(1, CELLS // (WIDTH * len(rows))) * WIDTH
        for start in range(runs[0].lo, runs[-1].hi, step) if runs else ():
            stop = min(start + step, runs[-1].hi)
            parts = [Run(max(run.lo, start), min(run.hi, stop), run.masked) for run in runs]
            parts = [part for part in parts if part.lo < part.hi]
            if parts:
                s = self.scores.scores(rows, slice(start, stop))[0, 0]
                forbid(s, forbidden_keys(self.mask, rows, parts, start, stop, self.b, self.h))
                yield start, s

    def keys(self, row: int) -> int:
        """How many keys a row may attend to, to the block."""
        runs = runs_of_rows(self.mask, self.b, self.h, row, row + 1, 0, self.scores.shape[3])
        return sum(run.hi - run.lo for run in runs)

    def normaliser(self, rows: Tensor) -> Normaliser:
        """That of some rows, [rows]."""
        found = self._of_few(rows)
        if found is not None:
            return found
        total = Normaliser.empty(self.scores.q.new_zeros(len(rows), dtype=self.dtype))
        for _, s in self.pieces(rows):
            total = total.merged(Normaliser.of(s))
        return total.with_sinks(self.scores.sinks)

    def _of_few(self, rows: Tensor) -> Normaliser | None:
        """The same by the native kernel for few queries, which reads all keys where they are; None if it cannot."""
        scores, mask = self.scores, self.mask
        if scores.slopes is not None or not 0 < len(rows) <= FEW:  # (slopes count distances from the last query)
            return None
        if mask is not None and (self.b is not None or self.h is not None or mask.cellwise):
            return None
        if bool((rows.diff() <= 0).any()):
            return None
        runs = runs_of_rows(mask, None, None, int(rows[0]), int(rows[-1]) + 1, 0, scores.shape[3])
        if sum(run.hi - run.lo for run in runs) < LONG_ROW:
            return None
        keys = slice(runs[0].lo, runs[-1].hi)
        seen = None if mask is None else Picked(mask, rows, torch.arange(keys.start, keys.stop))
        call = dataclasses.replace(scores.part(rows=rows, cols=keys), mask=seen)
        if refuse(call) is not None or not is_few(call):
            return None
        found = look(call, {"highest", "log_sum"}, {})
        return Normaliser(found["highest"][0, 0], found["log_sum"][0, 0])
