"""One head of one example of a record: its scores, some rows at a time, in pieces that fit the processor's cache.

Where the mask forbids a whole block nothing is computed, and single cells are only looked at where it cuts through one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from headwise.records.tiles import forbid, forbidden_keys
from headwise.tiles import WIDTH, Run, runs_of_rows

if TYPE_CHECKING:
    from headwise.records.record import AttentionRecord

# Cells of a piece: 2 MB of float32, which stay in the cache while they are asked for everything.
CELLS = 2**19


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
