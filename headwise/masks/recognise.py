"""Recognises a dense mask as causal, a window, padding, documents or a product (`&`) of these, in linear memory.

One pass over the cells (pairs of a query and a key) finds three numbers for each row (query): how many keys it allows,
the first and the last of them. If the allowed keys of every row have no gap (apart from keys that no query sees), every
further comparison needs only these three numbers, not the cells, and is still exact. Other masks are compared cell by
cell, or packed into bits.
"""

from __future__ import annotations

import dataclasses
import functools
import operator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.masks.band import Band
from headwise.masks.bits import make_bits, row_blocks
from headwise.masks.mask import Mask, mark_owned
from headwise.masks.padding import PaddingLengths
from headwise.masks.row_runs import Bools, Ints, RowRuns, key_padding
from headwise.masks.tables import of_rank_4


def recognise(allowed: Tensor) -> Mask | None:
    """Find the smallest mask that equals a bool tensor [Q, K], [H, Q, K] or [B|1, H|1, Q, K], True = may attend.

    The result is None if everything is allowed. Every cell of the mask equals the tensor's; nothing is approximated.
    Offsets are written out, since a dense mask need not align the last query with the last key. The forms are tried in
    this order:

    - `causal` or `window`, which need no memory at all;
    - `padding`: `lengths` if the real keys come first, otherwise bool [B, K];
    - `window` & `padding`;
    - `prefix` & `padding`; `documents` & `window` & `padding` (chunked attention is documents & causal; queries of
      padding that see nothing are a document of id -1);
    - `runs`, where each query sees consecutive keys, apart from padding: two numbers per query;
    - `window` & `padding` | `runs`, or `runs` & `padding` | `runs`, if queries of padding see everything (as some
      libraries fill them);
    - `bits`, one bit per cell.

    Examples or heads that are all equal are stored once. The tensors of the mask are on the device of the given tensor,
    and share no memory with it. The function needs memory for a block of rows, and for a few numbers per row and per
    key.

    Raises DtypeError for anything but a bool tensor, and MaskError for other ranks.

    >>> dense = torch.tensor([[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]).bool()
    >>> recognise(dense)
    causal(offset=1) & padding([0, 1, 1, 1])
    >>> print(recognise(dense).draw(3, 4))
    · ■ · ·
    · ■ ■ ·
    · ■ ■ ■
    """
    hint = ". An additive mask goes to recognise_additive"
    return recognise_cells(Cells(at_its_smallest(of_rank_4("recognise", allowed, hint))))


@dataclasses.dataclass(frozen=True)
class Cells:
    """The cells (pairs of a query and a key) of a bool or additive tensor, read as bool, some rows at a time."""

    values: Tensor  # [B|1, H|1, Q, K], bool, or float with `top`
    top: Tensor | None = None  # [B|1, H|1, Q, 1]: the value of the allowed cells of each row; NaN if no cell is allowed

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, q_len, k_len = self.values.shape
        return batch, heads, q_len, k_len

    def rows(self, rows: slice) -> Tensor:
        values = self.values[:, :, rows]
        return values if self.top is None else values == self.top[:, :, rows]


def recognise_cells(cells: Cells) -> Mask | None:
    """Find the smallest mask that allows exactly these cells; None if everything is allowed."""
    if 0 in cells.shape:
        return None
    parts = simple_parts(cells)
    if parts is None:
        parts = [make_bits((cells.rows(rows) for rows in row_blocks(cells.shape)), cells.shape[3])]
    if not parts:
        return None
    mask = functools.reduce(operator.and_, parts)
    return mark_owned(mask if mask.device in (None, cells.values.device) else mask.to(cells.values.device))


def simple_parts(cells: Cells) -> list[Mask] | None:
    """Find masks of linear size whose product (`&`) is these cells; [] if everything is allowed, None if none exist."""
    _, heads, q_len, _ = cells.shape
    one_row = heads == 1 and (q_len == 1 or cells.values.stride(2) == 0)  # a decoding step; expanded over the queries
    return _find_parts_of_one_row(cells) if one_row else _parts(cells)


def _find_parts_of_one_row(cells: Cells) -> list[Mask]:
    """Do the work of `_parts` if all queries see the same keys. Every decoding step runs it, so it must be quick."""
    real = cells.rows(slice(0, 1))[:, 0, 0].cpu().numpy()
    if real.all():
        return []
    if len(real) == 1 and cells.shape[2] == 1 and real.any():
        first, last = int(real[0].argmax()), real.shape[1] - 1 - int(real[0, ::-1].argmax())
        if real[0, first : last + 1].all():
            return [Band(last - first if first else None, 0, last)]  # the query is at the last key that it sees
    return [key_padding(real)]


def _parts(cells: Cells) -> list[Mask] | None:
    count, first, last = _count_first_last(cells)
    k_len = cells.shape[3]
    if not count.any():
        return [PaddingLengths(torch.zeros(1, dtype=torch.long, device="cpu"))]
    rows = RowRuns(count, first, last, np.ones((1, k_len), np.bool_))
    if rows.unbroken and (parts := rows.band()) is not None:
        return parts
    real = RowRuns(count, first, last, rows.union() if rows.unbroken else _seen(cells, None))
    candidates = [real.band, real.prefix, real.documents, real.runs] if real.unbroken else []
    if rows.unbroken:
        candidates = [real.band, rows.prefix, real.prefix, real.documents, rows.runs]
    for candidate in candidates:
        if (parts := candidate()) is not None:
            return parts
    return _documents_in_pieces(cells, real) or _with_open_rows(cells, rows)


def _with_open_rows(cells: Cells, rows: RowRuns) -> list[Mask] | None:
    """Find a mask of cells with open rows, which see every key: (the masks of the other rows) | runs of the open rows.

    The result is None if no row is open, or if another row has a gap.
    """
    open_ = rows.count == cells.shape[3]
    if not open_.any():
        return None
    count, first, last = (np.where(open_, empty, x) for empty, x in ((0, rows.count), (0, rows.first), (-1, rows.last)))
    seen = _seen(cells, torch.from_numpy(open_))
    real = RowRuns(count, first, last, seen, care=~open_)
    if not real.unbroken:
        return None
    parts = real.band() or real.runs()
    start = np.zeros_like(count)
    every = RowRuns(np.where(open_, rows.count, 0), start, np.where(open_, rows.last, -1), np.ones_like(seen[:1]))
    return [functools.reduce(operator.and_, parts) | every.runs()[0]]


def _documents_in_pieces(cells: Cells, rows: RowRuns) -> list[Mask] | None:
    """Find documents (maybe with gaps), a band and padding whose product has all of these cells; None if none has."""
    _, heads, q_len, k_len = cells.shape
    if heads > 1 or q_len > k_len:
        return None
    for parts in rows.documents_in_pieces(_find_first_of_early_keys(cells, rows, k_len - q_len)):
        if _equal(cells, functools.reduce(operator.and_, parts)):
            return parts
    return None


def _find_first_of_early_keys(cells: Cells, rows: RowRuns, n: int) -> Ints:
    """For each of the first `n` keys, find the first query that sees it; return this query's first key: int [B, n]."""
    pointer = np.broadcast_to(np.arange(n), (cells.shape[0], n)).copy()
    unknown = np.ones_like(pointer, np.bool_)
    if not n:
        return pointer
    for block in row_blocks(cells.shape):
        early = cells.rows(block)[:, 0, :, :n].view(torch.uint8)
        by = early.argmax(1).cpu().numpy() + block.start
        found = early.amax(1).cpu().numpy().astype(np.bool_) & unknown
        pointer[found] = np.minimum(np.take_along_axis(rows.first[:, 0], by, 1), np.arange(n))[found]
        unknown &= ~found
    return pointer


def _equal(cells: Cells, mask: Mask) -> bool:
    """Whether the mask has these cells; compared in small blocks, because most masks differ in the first block."""
    device = cells.values.device
    mask = mask.to(device)
    k = torch.arange(cells.shape[3], device=device)
    for rows in row_blocks(cells.shape, 2**18):
        q = torch.arange(rows.start, rows.stop, device=device)
        wanted = cells.rows(rows)
        if not torch.equal(mask.cells(q, k).expand(wanted.shape), wanted):
            return False
    return True


def _count_first_last(cells: Cells) -> tuple[Ints, Ints, Ints]:
    """Return how many keys each row allows, the first and the last of them: three [B, H, Q]; 0, 0, -1 if none."""
    blocks = [torch.stack(_find_ones(cells.rows(rows).view(torch.uint8))) for rows in row_blocks(cells.shape)]
    count, first, last = torch.cat(blocks, dim=-1).cpu().numpy()
    return count, np.where(count > 0, first, 0), np.where(count > 0, last, -1)


# How many cells are summed at once: each byte of a word can count up to 255.
_GROUP = 128


def _find_ones(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the ones in each row of uint8 [..., K]: return their number, the first and the last (undefined if none)."""
    k_len = rows.shape[-1]
    if k_len <= 2 * _GROUP:
        return rows.sum(-1), rows.argmax(-1), k_len - 1 - rows.flip(-1).argmax(-1)
    # Summing eight cells at once in 64 bits is fifty times as fast as one by one. The sums of groups tell which groups
    # hold the first and the last one, so that only two groups of a row are searched.
    rows = pad(rows, (0, -k_len % _GROUP)) if k_len % _GROUP else rows.contiguous()
    groups = (rows.clone() if rows.storage_offset() % 8 else rows).unflatten(-1, (-1, _GROUP))
    words = groups.view(torch.int64).sum(-1)
    sums = words.view(torch.uint8).unflatten(-1, (-1, 8)).sum(-1)
    held = (sums > 0).view(torch.uint8)
    first, last = held.argmax(-1, keepdim=True), held.shape[-1] - 1 - held.flip(-1).argmax(-1, keepdim=True)

    def group(index: Tensor) -> Tensor:
        return groups.gather(-2, index[..., None].expand(*index.shape, _GROUP)).squeeze(-2)

    first_in = first.squeeze(-1) * _GROUP + group(first).argmax(-1)
    last_in = last.squeeze(-1) * _GROUP + _GROUP - 1 - group(last).flip(-1).argmax(-1)
    return sums.sum(-1), first_in, last_in


def _seen(cells: Cells, without: Tensor | None) -> Bools:
    """Find the keys that at least one query sees, bool [B, K]. Rows where `without` [B, H, Q] is True are ignored."""
    found = torch.zeros((cells.shape[0], cells.shape[3]), dtype=torch.uint8, device=cells.values.device)
    for rows in row_blocks(cells.shape):
        block = cells.rows(rows)
        if without is not None:
            block = block & ~without[:, :, rows, None].to(block.device)
        found = torch.maximum(found, block.contiguous().view(torch.uint8).amax((1, 2)))
    return found.cpu().numpy().astype(np.bool_)


def at_its_smallest(dense: Tensor) -> Tensor:
    """Reduce a tensor [B, H, Q, K] to one example if all examples are equal, and to one head if all heads are equal."""
    for dim in (0, 1):
        others = dense.shape[dim] - 1
        if others < 1:
            continue
        if dense.stride(dim) == 0 or _same(dense.narrow(dim, 1, others), dense.narrow(dim, 0, others)):
            dense = dense.narrow(dim, 0, 1)
    return dense


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two slices of one tensor are equal."""
    size = a.element_size()
    if a.stride(-1) == 1 and not any(n * size % 8 for n in (a.shape[-1], *a.stride()[:-1], a.storage_offset())):
        a, b = a.view(torch.int64), b.view(torch.int64)  # compared eight bytes at a time
    return torch.equal(a, b)
