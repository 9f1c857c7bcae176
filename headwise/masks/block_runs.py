"""Finds the blocks in which a mask allows something, as runs of neighbouring blocks, without making the whole grid.

For a million positions, the grid of blocks of 64 × 64 has 268 million extent codes (all, some or none of the pairs of a
block are allowed). Most of them follow from the code of a larger block. So the mask is asked for the codes of large
blocks first, and only partly allowed blocks are cut into smaller ones. The work grows with the length of the boundary
between allowed and forbidden cells, not with the number of cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.masks.extent import Extent, Rectangles
from headwise.masks.relation import Relation

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Runs = tuple[Ints, Ints, Ints, Ints]  # row, lo, hi, code

FINER = 4  # number of rows and columns into which a partly allowed block is cut
COARSE = 2**16  # the largest number of blocks about which the mask is asked first
TOGETHER = 2**20  # about how many blocks the mask is asked about at once: each takes some tens of bytes


class BlockRuns(NamedTuple):
    """Runs [lo, hi) of neighbouring blocks of keys, numbered from 0. In a run, all blocks are ALL, or all are SOME.

    (ALL or some of the pairs of a block are allowed.) The runs are sorted by matrix (one per example and head), then by
    row of blocks, then by their keys.
    """

    matrices: tuple[int, int]  # (B|1, H|1)
    rows: int  # rows of blocks in each matrix
    cols: int
    row: Ints  # the row of each run: matrix · rows + row of blocks
    lo: Ints
    hi: Ints
    some: Bools  # True = SOME, False = ALL

    @property
    def first(self) -> Ints:
        """The index of the first run of each row of blocks, then the number of all runs: [B|1 · H|1 · rows + 1]."""
        count = self.matrices[0] * self.matrices[1] * self.rows
        return np.concatenate([[0], np.bincount(self.row, minlength=count).cumsum()])

    def counts(self) -> tuple[int, int, int]:
        """Count the blocks of all matrices that are (fully allowed, partly allowed, not allowed): three numbers."""
        blocks = self.hi - self.lo
        some = int(blocks[self.some].sum())
        every = int(blocks.sum()) - some
        return every, some, self.matrices[0] * self.matrices[1] * self.rows * self.cols - every - some


def block_runs(mask: Relation, q_len: int, k_len: int, block_q: int, block_k: int) -> BlockRuns:
    """Find the runs of blocks in which a mask, aligned to these lengths, allows something.

    Large blocks are looked at first. If a large block is ALL or NONE (of its pairs are allowed), so are the small
    blocks in it, even if the mask would say SOME for one of these alone. Single cells are evaluated only for the
    smallest blocks.
    """
    found = _Finder(mask, q_len, k_len, block_q, block_k)
    row, lo, hi, code = _all(joined(*_all(found.of(*rows))) for rows in found.groups())
    order = np.argsort(row, kind="stable")  # a group of rows has rows of all matrices
    return BlockRuns(
        found.matrices, found.rows, found.cols, row[order], lo[order], hi[order], code[order] == Extent.SOME
    )


class _Finder:
    """Finds the runs of a mask from large blocks to small ones. Rows and columns are counted in the smallest blocks."""

    def __init__(self, mask: Relation, q_len: int, k_len: int, block_q: int, block_k: int) -> None:
        self.mask, self.lengths, self.block = mask, (q_len, k_len), (block_q, block_k)
        self.rows, self.cols = -(-q_len // block_q), -(-k_len // block_k)
        self.matrices = mask.batch or 1, mask.heads or 1
        self.count = self.matrices[0] * self.matrices[1]
        self.size = 1  # the size of the blocks about which the mask is asked first
        while -(-self.rows // self.size) * -(-self.cols // self.size) > max(1, COARSE // min(self.count, 16)):
            self.size *= FINER

    def groups(self) -> Iterator[tuple[int, int]]:
        """Yield rows (first, end) of the largest blocks: the rows that are searched together, few if rows are long."""
        high = -(-self.rows // self.size)
        # Few blocks of a row of large blocks are cut; otherwise the answer would be as large as the grid.
        step = max(1, high // 8 if self.size > 1 else 4 * TOGETHER // max(1, self.cols * self.count))
        yield from ((i, min(high, i + step)) for i in range(0, high if self.cols else 0, step))

    def of(self, first: int, past: int) -> Iterator[Runs]:
        """Yield the runs in rows [first, past) of the largest blocks, in tables (row, lo, hi, code), one or more."""
        wide = -(-self.cols // self.size)
        q = (torch.arange(first, past, dtype=torch.int32, device="cpu") * self.size)[:, None].expand(-1, wide)
        k = (torch.arange(wide, dtype=torch.int32, device="cpu") * self.size)[None, :].expand(past - first, -1)
        yield from self._cut(q.reshape(-1), k.reshape(-1), None, self.size)

    def _cut(self, q: Tensor, k: Tensor, above: Tensor | None, size: int) -> Iterator[Runs]:
        """Yield the runs in the blocks of `size` that begin at q, k, and in smaller blocks cut from those of SOME.

        `above`: the codes of the larger blocks from which these were cut; None = they are the largest.
        """
        codes = self._codes(q, k, size)
        if above is not None and self.count > 1:
            codes = torch.where(above == Extent.SOME, codes, above)  # settled in one matrix, but not in another
        is_open = (codes == Extent.SOME).any(0)
        settled = ~is_open if size > 1 else torch.ones_like(is_open)
        yield self._runs(q[settled], k[settled], codes[:, settled], size)
        if size == 1 or not bool(is_open.any()):
            return
        q, k, codes, finer = q[is_open], k[is_open], codes[:, is_open], size // FINER
        steps = torch.arange(FINER, dtype=torch.int32, device="cpu") * finer
        for some in torch.arange(len(q), device="cpu").split(max(1, TOGETHER // FINER**2 // self.count)):
            below_q = (q[some][:, None, None] + steps[:, None]).expand(-1, FINER, FINER).reshape(-1)
            below_k = (k[some][:, None, None] + steps).expand(-1, FINER, FINER).reshape(-1)
            inside = (below_q < self.rows) & (below_k < self.cols)
            of_parents = codes[:, some].repeat_interleave(FINER**2, dim=1)[:, inside] if self.count > 1 else None
            yield from self._cut(below_q[inside], below_k[inside], of_parents, finer)

    def _codes(self, q: Tensor, k: Tensor, size: int) -> Tensor:
        """Ask the mask for the extent codes (NONE, SOME, ALL) of blocks of `size` at q, k: [matrices, blocks]."""
        (q_len, k_len), (block_q, block_k) = self.lengths, self.block
        q_lo, k_lo = q * block_q, k * block_k
        q_hi, k_hi = (q_lo + size * block_q).clamp(max=q_len), (k_lo + size * block_k).clamp(max=k_len)
        codes = self.mask.extents(Rectangles(q_lo, q_hi, k_lo, k_hi, coarse=size > 1))
        return codes.expand(*self.matrices, len(q)).reshape(self.count, len(q))

    def _runs(self, q: Tensor, k: Tensor, codes: Tensor, size: int) -> Runs:
        """Make one run for each row of smallest blocks in each block of `size` that allows something."""
        matrix, place = (codes != Extent.NONE).nonzero(as_tuple=True)
        top, lo = (x[place].numpy().astype(np.int64) for x in (q, k))
        code = codes[matrix, place].numpy().astype(np.int64)
        # Neighbours are joined first: then there are fewer runs to repeat for each row.
        top, lo, hi, code = joined(matrix.numpy() * self.rows + top, lo, np.minimum(lo + size, self.cols), code)
        within = np.tile(np.arange(size), len(top))
        top, lo, hi, code = (np.repeat(x, size) for x in (top, lo, hi, code))
        kept = top % self.rows + within < self.rows
        return (top + within)[kept], lo[kept], hi[kept], code[kept]


def _all(parts: Iterator[Runs]) -> Runs:
    """Concatenate several tables of runs, column by column."""
    row, lo, hi, code = (np.concatenate(column) for column in zip((np.empty(0, np.int64),) * 4, *parts, strict=True))
    return row, lo, hi, code


def joined(row: Ints, lo: Ints, hi: Ints, code: Ints) -> Runs:
    """Sort runs by row and position, and join neighbouring runs of a row that have the same code."""
    order = np.lexsort((lo, row))
    row, lo, hi, code = row[order], lo[order], hi[order], code[order]
    begins = np.ones(len(row), np.bool_)
    begins[1:] = (row[1:] != row[:-1]) | (lo[1:] != hi[:-1]) | (code[1:] != code[:-1])
    ends = np.roll(begins, -1)
    ends[-1:] = True
    return row[begins], lo[begins], hi[ends], code[begins]
