"""Decides which rows of a sequence each process holds, so that all processes have about equally many allowed pairs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.errors import ArgumentError, ShapeError
from headwise.masks import Extent, Mask
from headwise.masks.cellwise import as_mask

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

EVEN = 1.05  # the work counts as evenly dealt if (the most cells of a process) / (the mean) is at most this
BLOCK = 64  # rows that stay together, if the sequence is long enough
LEAST_BLOCKS, MOST_BLOCKS = 2048, 8192  # limits of the number of blocks of a long sequence
PIECES = 16  # the minimum number of blocks per process, if there are enough rows

Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The division of a sequence: which rows (positions) each process holds.

    Every process computes the same layout, from only the mask and the length.

    >>> layout = headwise.parallel.deal(mask, length, mesh)
    >>> ids, labels = (layout.shard(x, rank, dim=1) for x in (ids, labels))

    Rows stay together in blocks, in the order of the sequence.
    """

    edges: Ints  # [blocks + 1]: the start of each block, and the length
    owner: Ints  # [blocks]: the process of each block
    processes: int
    way: str  # how the rows were dealt: a name of `WAYS`, or "in chunks"

    @property
    def length(self) -> int:
        """The number of rows of the whole sequence."""
        return int(self.edges[-1])

    @cached_property
    def digest(self) -> bytes:
        """The hash of the layout: bytes that are the same only for equal layouts."""
        return hashlib.blake2b(self.edges.tobytes() + self.owner.tobytes(), digest_size=8).digest()

    @cached_property
    def owner_of_rows(self) -> Ints:
        """For each row the process that holds it, [length]."""
        return self.owner.repeat(np.diff(self.edges))

    @cached_property
    def positions(self) -> tuple[Tensor, ...]:
        """The positions of the rows of each process, int64, ascending."""
        return tuple(torch.from_numpy(np.flatnonzero(self.owner_of_rows == p)) for p in range(self.processes))

    def shard(self, x: Tensor, process: int, dim: int = 1) -> Tensor:
        """Return the rows of a process in a tensor of the whole sequence. ShapeError if it has another length."""
        if x.shape[dim] != self.length:
            raise ShapeError(
                f"x: expected {self.length} positions, the length that was dealt. Received: x={list(x.shape)}, "
                f"dim={dim}"
            )
        return x.index_select(dim, self.positions[process].to(x.device))

    def joined(self, parts: list[Tensor], dim: int = 1) -> Tensor:
        """Join the rows of all processes to the whole sequence."""
        order = torch.cat(self.positions).argsort()
        return torch.cat(parts, dim).index_select(dim, order.to(parts[0].device))


@dataclasses.dataclass(frozen=True)
class Grid:
    """The work that a mask causes in each block of rows: the number of cells (allowed pairs), and the keys it needs."""

    edges: Ints  # [blocks + 1]
    key_edges: Ints  # [key blocks + 1], edges in the sequence that is read
    cells: NDArray[np.float64]  # [blocks]: allowed pairs of the rows, approximate mean over examples and heads
    needed: NDArray[np.bool_]  # [blocks, key blocks]: whether some row of the block may see some key of the key block

    @cached_property
    def rows(self) -> Ints:
        """The number of rows in each block, [blocks]."""
        return np.diff(self.edges)

    @cached_property
    def keys(self) -> Ints:
        """The number of keys in each key block, [key blocks]."""
        return np.diff(self.key_edges)

    def per_process(self, owner: Ints, key_owner: Ints, count: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the number of cells of each process, [P], and which key blocks it needs, bool [P, key blocks].

        A process needs the key blocks that its rows may see. If its rows see nothing, it needs its own keys, because it
        still has to make a call.

        Args:
            owner, key_owner: the process of each block of rows, and of each block of keys.
            count: P, the number of processes.
        """
        cells = np.bincount(owner, self.cells, count).astype(np.float64)
        needed: NDArray[np.bool_] = np.stack([self.needed[owner == p].any(0) for p in range(count)])
        empty = ~needed.any(1)
        needed[empty] = key_owner[None] == np.flatnonzero(empty)[:, None]
        return cells, needed

    def keys_from_others(self, key_owner: Ints, needed: NDArray[np.bool_]) -> Ints:
        """Count the keys that each process receives from others, [P]; `needed` as `per_process` returns it."""
        others = key_owner[None] != np.arange(len(needed))[:, None]
        keys: Ints = (needed & others) @ self.keys
        return keys


def make_grid(mask: Mask | None, edges: Ints, key_edges: Ints) -> Grid:
    """Compute the work that an aligned mask causes in each block between `edges`; the mask object remembers it."""
    if mask is None:
        cells = np.diff(edges) * float(key_edges[-1])
        return Grid(edges, key_edges, cells, np.ones((len(edges) - 1, len(key_edges) - 1), bool))
    digests = (hashlib.blake2b(x.tobytes(), digest_size=8).digest() for x in (edges, key_edges))
    return mask.remember(
        ("grid of", *digests), lambda mask: Grid(edges, key_edges, *_cells(mask, edges[:-1], edges[1:], key_edges))
    )


def fine_grid(mask: Mask | None, length: int, processes: int) -> Grid:
    """Compute the grid of a mask for self-attention, with blocks that are small enough to deal to the processes."""
    edges = _even(length, processes)
    grid = make_grid(mask, edges, edges)
    if mask is None:
        return grid
    # Rows that see far more than others, such as global tokens, are cut finer, until none has many cells.
    most = max(grid.cells.sum() / (2 * PIECES * processes), 3 * grid.cells.mean(), 1.0)
    found, low, high, cells = edges, edges[:-1], edges[1:], grid.cells
    while (heavy := (cells > most) & (high - low > 1)).any():
        cut = zip(low[heavy], high[heavy], np.ceil(2 * cells[heavy] / most), strict=True)
        pieces = [np.linspace(a, b, int(min(n, b - a)) + 1, dtype=np.int64) for a, b, n in cut]
        low, high = (np.concatenate([each[part] for each in pieces]) for part in (slice(-1), slice(1, None)))
        found, cells = np.union1d(found, low), _cells(mask, low, high, edges)[0]
    return grid if found is edges else make_grid(mask, found, found)


def _even(length: int, processes: int) -> Ints:
    """Return the edges of blocks of equal size (the last may be smaller), small enough for the number of processes."""
    block = BLOCK
    while block > 1 and length // block < PIECES * processes:
        block //= 2
    while -(-length // block) > min(max(LEAST_BLOCKS, PIECES * processes), MOST_BLOCKS):
        block *= 2
    return np.append(np.arange(0, length, block), length)


def _cells(mask: Mask, low: Ints, high: Ints, edges: Ints) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Count the cells (allowed pairs; half if partly allowed) of blocks of rows, and find the key blocks they need."""
    row_low, row_high, key_low, key_high = (torch.from_numpy(x).int() for x in (low, high, edges[:-1], edges[1:]))
    cells: list[NDArray[np.float64]] = []
    needed: list[NDArray[np.bool_]] = []
    strip = max(1, 2**22 // (len(key_low) * (mask.batch or 1) * (mask.heads or 1)))
    for i in range(0, len(low), strip):
        some = slice(i, i + strip)
        codes = mask.rectangles(row_low[some, None], row_high[some, None], key_low[None], key_high[None])
        seen = (codes.float().mean((0, 1)) / 2).double().numpy()  # a partly allowed block counts half
        cells.append((high - low)[some].astype(np.float64) * (seen @ np.diff(edges)))
        needed.append((codes != Extent.NONE).flatten(0, 1).any(0).numpy())
    return np.concatenate(cells), np.concatenate(needed)


def in_order(grid: Grid, processes: int) -> Ints:
    """Deal each process one piece of the sequence, so that neighbours stay together: for windows and packed documents.

    The cuts between processes minimise the largest number of cells (allowed pairs) of a process, with at most 5 % (or
    one block, if that is more) more or fewer rows than the mean. Returns the process of each block.
    """
    mean = grid.edges[-1] / processes
    spare = max((EVEN - 1) * mean, grid.rows.max())
    cells = np.append(0.0, grid.cells.cumsum())
    low, high = cells[-1] / processes, cells[-1]
    cuts = _cuts(grid.edges, cells, high, processes, mean - spare, mean + spare)
    if cuts is None:
        return _middles(grid) * processes // grid.edges[-1]
    for _ in range(20):  # a precision of a millionth of all cells
        most = (low + high) / 2
        tried = _cuts(grid.edges, cells, most, processes, mean - spare, mean + spare)
        if tried is None:
            low = most
        else:
            cuts, high = tried, most
    return np.searchsorted(cuts, np.arange(len(grid.cells)), side="right")


def _cuts(
    edges: Ints, cells: NDArray[np.float64], most: float, processes: int, least: float, rows: float
) -> Ints | None:
    """Cut the sequence: let each process in turn take as many blocks as its limits allow.

    Returns the first block of processes 1, 2 …; None if blocks are left, or a process gets too few rows.

    Args:
        cells: [blocks + 1], the number of cells before each block.
        most: the largest number of cells that a process may have.
        least, rows: the smallest and the largest number of rows that a process may have.
    """
    cuts = [0]
    for rest in reversed(range(processes)):
        start = cuts[-1]
        limit = min(edges[start] + rows, edges[-1] - rest * least)
        end = int(min(np.searchsorted(cells, cells[start] + most, "right"), np.searchsorted(edges, limit, "right"))) - 1
        if edges[end] - edges[start] < least or end == start:
            return None
        cuts.append(end)
    return np.array(cuts[1:-1]) if cuts[-1] == len(cells) - 1 else None


def in_pairs(grid: Grid, processes: int) -> Ints:
    """Deal each process a piece of the front half and one of the back half: for causal masks (zigzag ring)."""
    piece = _middles(grid) * 2 * processes // grid.edges[-1]
    return np.minimum(piece, 2 * processes - 1 - piece)


def in_turns(grid: Grid, processes: int) -> Ints:
    """Deal one block after another to the processes in turn (striped attention; Brandon et al. 2023)."""
    return np.arange(len(grid.cells)) % processes


def by_cells(grid: Grid, processes: int) -> Ints:
    """Deal the block with the most cells (allowed pairs) first, to the process with the fewest cells that has room.

    Returns the process of each block. It works for any mask. Processes with rows of many cells get fewer other rows.
    """
    room = np.full(processes, EVEN * grid.edges[-1] / processes)
    cells, owner = np.zeros(processes), np.zeros(len(grid.cells), np.int64)
    for i in np.argsort(-grid.cells, kind="stable"):
        fits = room >= grid.rows[i]
        owner[i] = p = int(np.where(fits, cells, np.inf).argmin()) if fits.any() else int(room.argmax())
        cells[p] += grid.cells[i]
        room[p] -= grid.rows[i]
    return owner


def _middles(grid: Grid) -> Ints:
    return (grid.edges[:-1] + grid.edges[1:] - 1) // 2


WAYS: dict[str, Callable[[Grid, int], Ints]] = {
    "in order": in_order,
    "in pairs": in_pairs,
    "in turns": in_turns,
    "by cells": by_cells,
}


def deal(mask: Mask | None, length: int, processes: int | DeviceMesh) -> Layout:
    """Decide which rows each process holds in self-attention: about equal numbers of rows and of allowed pairs.

    Several methods of dealing rows are tried (`WAYS`). Of the methods that give no process over 5 % more allowed pairs
    than the mean, the result is that of the method with the fewest keys to send to a process; if there is no such
    method, that of the method with the most equal numbers of pairs.

    Args:
        mask: the mask of the whole sequence; None = every query sees every key.
        length: the length of the whole sequence.
        processes: the number of processes, or a mesh of one dimension.

    Raises:
        ArgumentError: fewer rows than processes.
        MaskError: a mask that does not fit the length.
    """
    count = processes if isinstance(processes, int) else processes.size()
    mask = None if mask is None else as_mask("mask", mask)
    if not 1 <= count <= length:
        raise ArgumentError(f"expected at least one row for each process. Received: length={length}, {count} processes")
    if mask is None:
        return _deal(None, length, count)
    aligned = mask.aligned(length, length)
    return aligned.remember(("dealt", length, count), lambda mask: _deal(mask, length, count))


def chunks(length: int, processes: int | DeviceMesh) -> Layout:
    """Return the layout that a DTensor with `Shard` on the sequence has: ⌈length / P⌉ rows each, as torch.chunk does.

    The last processes may have fewer rows, or none.

    Args:
        length: the length of the whole sequence.
        processes: the number of processes, or a mesh of one dimension.

    Raises:
        ArgumentError: a length below 1.
    """
    count = processes if isinstance(processes, int) else processes.size()
    if length < 1 or count < 1:
        raise ArgumentError(f"expected at least one row and one process. Received: length={length}, {count} processes")
    size = -(-length // count)
    edges = np.union1d(_even(length, count), np.arange(0, length, size))
    return Layout(edges, edges[:-1] // size, count, "in chunks")


def _deal(mask: Mask | None, length: int, processes: int) -> Layout:
    grid = fine_grid(mask, length, processes)
    found = list(_dealt(grid, processes))
    most = max(EVEN, min(uneven for uneven, *_ in found))
    _, _, way, owner = min((each for each in found if each[0] <= most), key=lambda each: each[1])
    return Layout(grid.edges, owner, processes, way)


def _dealt(grid: Grid, processes: int) -> Iterator[tuple[float, int, str, Ints]]:
    """Deal the rows by each method of `WAYS`, and yield how good the result is.

    Yields (the largest number of cells of a process divided by the mean, the largest number of keys that a process
    receives, the name of the method, the process of each block).
    """
    mean = max(grid.cells.sum() / processes, 1e-9)
    for name, way in WAYS.items():
        owner = way(grid, processes)
        if len(np.unique(owner)) < processes:  # a sequence of few rows
            continue
        cells, needed = grid.per_process(owner, owner, processes)
        keys = int(grid.keys_from_others(owner, needed).max())
        yield float(cells.max() / mean) if grid.cells.any() else 1.0, keys, name, owner
