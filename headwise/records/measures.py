"""What is asked of a tile of attention weights: the largest, how many hold most of the mass, how far away they are, and
the picture drawn small.

Tiles are [n, rows, keys]: n heads, and the keys filled up with 0 to a multiple of `WIDTH`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_max_pool1d

from headwise.records.tiles import Tile

# Keys are put in chunks: the k largest weights of a row lie in the k chunks with the largest maxima.
CHUNK = 32

# Keys of a tile are filled up to whole multiples of this, which is also a chunk of sorted weights.
WIDTH = 64

# Cells of each of the two buffers in which rows are put together.
POOL_CELLS = 2**20

# A sum of weights that comes so close to what was asked for, relatively, has reached it.
ROUND_OFF = {torch.float32: 1e-6, torch.float64: 1e-13}


def largest(weights: Tensor, keys: int, top: int) -> tuple[Tensor, Tensor]:
    """The largest of the first `keys` weights of each row, descending, and where they are: [n, rows, top] each."""
    n, rows, width = weights.shape
    chunks = width // CHUNK
    if chunks <= 2 * top:
        where = _places(weights[..., :keys], top, ordered=True)
        return weights.gather(2, where), where
    # Were one of the `top` largest in a chunk not taken, each chunk that is taken would hold one at least as large.
    by_chunk = weights.view(n * rows, chunks, CHUNK)
    maxima = by_chunk.amax(-1)
    whole, rest = divmod(keys, CHUNK)
    taken = _places(maxima[:, : whole + (rest > 0)], top, ordered=False)
    inside = _rows_of(by_chunk, taken)
    if rest:  # what the last chunk is filled up with is no key
        inside[..., rest:].masked_fill_((taken == whole)[..., None], -1.0)
    where = _places(inside.flatten(1), top, ordered=True)
    found = taken.gather(1, where // CHUNK) * CHUNK + where % CHUNK
    return inside.flatten(1).gather(1, where).view(n, rows, top), found.view(n, rows, top)


def _places(x: Tensor, top: int, *, ordered: bool) -> Tensor:
    """Where the `top` largest along the last axis are; the largest first, if they are to be ordered.

    On the CPU NumPy partitions numbers with vector instructions, but not while it keeps track of their places: so each
    is put before its place in one integer. (The bits of floats that are not negative, or -1, are ordered as they are.)
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return x.topk(top, dim=-1, sorted=ordered).indices
    packed = x.contiguous().numpy().view(np.int32).astype(np.int64)
    packed <<= 32
    packed |= np.arange(x.shape[-1])
    if top < x.shape[-1]:
        packed.partition(x.shape[-1] - top, axis=-1)
    packed = packed[..., -top:]
    if ordered:
        packed = np.sort(packed, axis=-1)[..., ::-1]
    return torch.from_numpy(packed & 0xFFFFFFFF)


def _rows_of(x: Tensor, index: Tensor) -> Tensor:
    """x[i, index[i, j]] of a contiguous x [a, b, c] and an index [a, d]: [a, d, c]."""
    start = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)
    return x.flatten(0, 1).index_select(0, (index + start[:, None]).flatten()).view(*index.shape, -1)


def keys_needed(weights: Tensor, share: float) -> Tensor:
    """The fewest weights of each row that sum to `share` of all; int64 [n, rows]. Sorts the weights in place."""
    n, rows, width = weights.shape
    chunks = width // WIDTH
    if weights.device.type == "cpu":
        weights.numpy().sort(axis=-1)  # NumPy sorts with vector instructions: 30 times as fast as torch.sort
    else:
        weights.copy_(weights.sort(dim=-1).values)
    # All but the smallest weights that sum to no more than the rest: whole chunks of them, then part of the next.
    by_chunk = weights.view(n * rows, chunks, WIDTH)
    sums = by_chunk.sum(-1).cumsum(-1)
    rest = sums[:, -1:] * (1.0 - share + ROUND_OFF[weights.dtype])
    whole = torch.searchsorted(sums, rest, right=True)
    chunk = _rows_of(by_chunk, whole.clamp(max=chunks - 1))[:, 0]
    before = sums.gather(1, (whole - 1).clamp_(min=0)).masked_fill_(whole == 0, 0.0)
    part = torch.searchsorted(chunk.cumsum(-1).add_(before), rest, right=True)
    return (width - whole * WIDTH - part).clamp_(min=0).view(n, rows)  # below 0: every chunk was a whole one


class Distances:
    """Σ A |i - j| of a tile's rows. Away from the diagonal |i - j| is a sum of a row's part and a key's part."""

    def __init__(self, q_len: int, k_len: int, rows: int, like: Tensor) -> None:
        """For tiles of at most so many rows; `like` says in which dtype and on which device."""
        self.offset = k_len - q_len  # the position of the first query
        self.rising = torch.arange(q_len + k_len + 1, dtype=like.dtype, device=like.device)
        self.falling = self.rising.flip(0)
        self.apart = (self.rising[:rows, None] - self.rising[:rows]).abs()

    def of(self, weights: Tensor, tile: Tile) -> Tensor:
        """[n, rows], in tokens. All terms are positive: nothing cancels."""
        rows = tile.rows
        first, end = tile.q_lo + self.offset, tile.q_hi + self.offset  # the rows' own positions
        left, right = min(max(first, tile.k_lo), tile.k_hi), min(max(end, tile.k_lo), tile.k_hi)
        total = (
            weights[..., left - tile.k_lo : right - tile.k_lo] * self.apart[:rows, left - first : right - first]
        ).sum(-1)
        if left > tile.k_lo:  # |i - j| = (i - first) + (first - j)
            at = self.falling.shape[0] - 1 - (first - tile.k_lo)
            total += _apart(weights[..., : left - tile.k_lo], self.rising[:rows], self.falling[at:])
        if right < tile.k_hi:  # |i - j| = (end - 1 - i) + (j - end + 1)
            part = weights[..., right - tile.k_lo : tile.keys]
            total += _apart(part, self.falling[-rows:], self.rising[right - end + 1 :])
        return total


def _apart(weights: Tensor, of_row: Tensor, of_key: Tensor) -> Tensor:
    """Σ_j A[i, j] (of_row[i] + of_key[j]), [n, rows]."""
    n, rows, keys = weights.shape
    flat = weights.flatten(0, 1)
    return torch.addcmul(torch.mv(flat, of_key[:keys]).view(n, rows), flat.sum(-1).view(n, rows), of_row)


class Pool:
    """The matrix drawn small, and with it what each key receives.

    Rows are first put together in strips that are cut wherever a cell of the picture begins or ends; each strip is then
    pooled over its keys, and goes into the one or two cells that it belongs to.
    """

    def __init__(self, answers: dict[str, Tensor], tiles: Sequence[Tile], q_len: int, k_len: int) -> None:
        """`answers`: any of pooled_mean, pooled_max [n, h, w] and received [n, K], filled with 0."""
        self.mean, self.max = answers.get("pooled_mean"), answers.get("pooled_max")
        self.received = answers.get("received")
        like = next(x for x in (self.mean, self.max) if x is not None)
        n, height, self.width = like.shape
        cells = torch.arange(height)
        low, high = cells * q_len // height, -(-(cells + 1) * q_len // height)
        cuts = torch.cat([low, high]).unique()
        self.cuts = cuts.tolist()
        self.heights = (high - low).to(like)
        # The first strip of every cell, the second of every cell that has one, and so on: which cells, which strips.
        first, end = torch.searchsorted(cuts, low), torch.searchsorted(cuts, high)
        several = [(first + i < end, first + i) for i in range(int((end - first).max()))]
        self.parts = [(cells[has].to(like.device), strip[has].to(like.device)) for has, strip in several]
        most = max((stop - start for start, stop in map(self._strips, tiles)), default=0)
        held = min(len(self.cuts) - 1, max(most, POOL_CELLS // (n * k_len)))
        self.first = 0  # which strip is the first in the buffers
        self.sums = like.new_zeros(n, held, k_len)
        self.maxima = None if self.max is None else torch.zeros_like(self.sums)

    def add(self, weights: Tensor, tile: Tile) -> None:
        """Put the rows of a tile into their strips."""
        lo, hi = self._strips(tile)
        if hi > self.first + self.sums.shape[1]:
            self.flush()
            self.first = lo
        bounds = [tile.q_lo, *self.cuts[lo + 1 : hi], tile.q_hi]
        heights = {b - a for a, b in itertools.pairwise(bounds)}
        if len(heights) == 1:
            self._add(lo, tile, weights.view(weights.shape[0], hi - lo, *heights, -1))
        else:
            for i, (a, b) in enumerate(itertools.pairwise(bounds)):
                self._add(lo + i, tile, weights[:, None, a - tile.q_lo : b - tile.q_lo])

    def _add(self, strip: int, tile: Tile, group: Tensor) -> None:
        """Add [n, strips, rows of each, keys] from this strip on."""
        at = strip - self.first
        self.sums[:, at : at + group.shape[1], tile.k_lo : tile.k_hi] += group.sum(2)[..., : tile.keys]
        if self.maxima is not None:
            highest = self.maxima[:, at : at + group.shape[1], tile.k_lo : tile.k_hi]
            torch.maximum(highest, group.amax(2)[..., : tile.keys], out=highest)

    def flush(self) -> None:
        """Pool the strips in the buffers over their keys, and make room for the next."""
        if self.received is not None:
            self.received += self.sums.sum(1)
        if self.mean is not None:
            pooled = adaptive_avg_pool1d(self.sums, self.width)  # [n, strips, w]
            for cells, strips in self._parts_held():
                self.mean[:, cells] += pooled[:, strips] / self.heights[cells, None]
        if self.max is not None and self.maxima is not None:
            pooled = adaptive_max_pool1d(self.maxima, self.width)
            for cells, strips in self._parts_held():
                self.max[:, cells] = torch.maximum(self.max[:, cells], pooled[:, strips])
            self.maxima.zero_()
        self.sums.zero_()

    def _parts_held(self) -> list[tuple[Tensor, Tensor]]:
        """`parts`, those in the buffers, with where they are there."""
        held = []
        for cells, strips in self.parts:
            here = (strips >= self.first) & (strips < self.first + self.sums.shape[1])
            held.append((cells[here], strips[here] - self.first))
        return held

    def _strips(self, tile: Tile) -> tuple[int, int]:
        """Which strips a tile's rows are in: the first, and one past the last."""
        return bisect.bisect_right(self.cuts, tile.q_lo) - 1, bisect.bisect_left(self.cuts, tile.q_hi)
