"""Makes the mask of a generation from the masks of its steps, in linear size where possible.

Nearly always each row (query) sees a run of consecutive keys, except padding. Such a mask is stored as two numbers per
row and one flag per key. The mask of any other step is kept unchanged.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise import masks
from headwise.masks import Mask
from headwise.masks.band import Band
from headwise.masks.row_runs import Bools, Ints, RowRuns
from headwise.masks.runs import Runs


class MaskRows:
    """The mask of a sequence whose rows (queries) are added step by step.

    In a beam search the rows of a step belong to beams: `beams` [N, steps] says, for each of N beams, which example of
    each step belongs to it; -1 = the beam had ended.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []  # (queries, keys they may see, all keys so far) of each step
        self._runs: list[tuple[Ints, Ints]] = []  # for each step: where the runs of its rows start and stop, [B|1, q]
        self._real: Bools | None = None  # [B|1, K], by the example that a key came from; None = all keys are real
        self._kept: list[Mask | None] = []  # for each step: its mask, if its rows are not runs of the real keys

    def append(self, mask: Mask | None, q_len: int, k_len: int, total: int, beams: Tensor | None = None) -> None:
        """Add a step of `q_len` queries that may see the last `k_len` keys; there are now `total` keys."""
        before = self.steps[-1][2] if self.steps else 0
        self.steps.append((q_len, k_len, total))
        if mask is None and self._real is None:
            self._runs.append((np.full((1, q_len), total - k_len), np.full((1, q_len), total)))
            self._kept.append(None)
            return
        mask = Band(None, None, 0) if mask is None else mask
        start, stop, seen, exact = _find_runs(mask, q_len, k_len)
        shift = total - k_len
        self._runs.append((start + shift, stop + shift))
        real = _joined([_real(self._real, before), seen[:, before - shift :]])
        self._real = None if real.all() else real
        others = _take_beams(real, self.origins(beams)[1])[:, shift:] != seen
        if exact and others.any():  # some of these other keys may not matter
            k = np.arange(k_len)
            others = others & (k >= start.min(1, keepdims=True)) & (k < stop.max(1, keepdims=True))
        self._kept.append(mask if not exact or others.any() else None)

    def cut(self, count: int, keys: int, *, unseen: bool) -> bool:
        """Remove the last `count` rows and `keys` keys, all of the last step.

        Returns False, and does nothing, if `unseen` is True but remaining rows may see these keys.
        """
        q_len, k_len, total = self.steps[-1]
        q_len, left = q_len - count, k_len - keys
        start, stop = (x[:, :q_len] for x in self._runs[-1])
        kept, stays = self._kept[-1], total - keys
        sees = bool((stop > stays).any())
        if kept is not None:
            sees = bool(kept.cells(*_positions(q_len, k_len, left)).any())
        if keys and unseen and sees:
            return False
        self.steps[-1] = q_len, left, stays
        self._runs[-1] = start.clip(max=stays), stop.clip(max=stays)
        self._real = None if self._real is None else self._real[:, :stays]
        return True

    def origins(self, beams: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return, for each row and key of the beams, the example of its step from which it comes: [N, Q] and [N, K]."""
        if beams is None:
            return None, None
        rows, _, totals = torch.tensor(self.steps, device=beams.device)[: beams.shape[1]].unbind(1)
        beams = beams[:, : len(rows)]
        return beams.repeat_interleave(rows, 1), beams.repeat_interleave(totals.diff(prepend=totals.new_zeros(1)), 1)

    def mask(self, beams: Tensor | None = None) -> Mask | None:
        """Return the mask of all rows so far; with `beams`, of these beams, whose keys end where the beams ended."""
        rows, keys = self.origins(beams)
        start, stop = (_take_beams(_joined(parts), rows) for parts in zip(*self._runs, strict=True))
        real = _take_beams(_real(self._real, self.steps[-1][2]), keys)
        there = np.ones_like(real) if keys is None else (keys >= 0).cpu().numpy()
        runs = _row_runs(start, stop, real & there)
        if any(mask is not None for mask in self._kept) or not runs.filled.any():
            k = np.arange(real.shape[1])
            allowed = torch.from_numpy((k >= start[..., None]) & (k < stop[..., None]) & real[:, None])
            kept = (
                None if mask is None else mask.cells(*_positions(q_len, k_len))
                for mask, (q_len, k_len, _) in zip(self._kept, self.steps, strict=True)
            )
            return masks.recognise(
                place(kept, self.steps, allowed[:, None], rows) & torch.from_numpy(there)[:, None, None]
            )
        forms = (form() for form in (runs.band, runs.prefix, runs.documents, runs.runs))
        parts = next(parts for parts in forms if parts is not None)
        return functools.reduce(operator.and_, parts) if parts else None


def _positions(q_len: int, k_len: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Return the indices of all queries, and the indices of the keys from `first` on, on the CPU, where rows are."""
    return torch.arange(q_len, device="cpu"), torch.arange(first, k_len, device="cpu")


def place(
    tiles: Iterable[Tensor | None], steps: Iterable[tuple[int, int, int]], whole: Tensor, rows: Tensor | None
) -> Tensor:
    """Write the tile [B|1, H|1, q|1, k|1] of each step into its rows and columns of `whole` [N|1, H|1, Q, K|1].

    A tile is a step's mask or bias. Returns the tensor that was written to, which may be a larger copy of `whole`.
    `rows` [N, Q] says from which example of the tiles each row comes; None = from the example of the same index.
    """
    row = 0
    for tile, (q_len, k_len, total) in zip(tiles, steps, strict=True):
        if tile is not None and row < whole.shape[2]:
            if rows is not None and len(tile) > 1:
                tile = tile[rows[:, row].clamp(min=0).to(tile.device)]
            lead = (max(a, b) for a, b in zip(tile.shape[:2], whole.shape[:2], strict=True))
            whole = whole.expand(*lead, -1, -1).contiguous()
            columns = slice(None) if whole.shape[3] == 1 else slice(total - k_len, total)
            whole[:, :, row : row + q_len, columns] = tile
        row += q_len
    return whole


def _find_runs(mask: Mask, q_len: int, k_len: int) -> tuple[Ints, Ints, Bools, bool]:
    """Describe a mask by runs of keys: return (start, stop [B|1, Q], seen [B|1, K], exact).

    Row i sees only keys from start[i] to stop[i] where `seen` is True; `exact` says whether it sees all of these.
    """
    q, exact = np.arange(q_len), True
    start, stop, seen = np.zeros((1, q_len)), np.full((1, q_len), k_len), np.ones((1, k_len), np.bool_)
    for part in mask.conjuncts:
        band = part.band()
        if band is not None:
            low, high = q + band[0], q + band[1] + 1
        elif isinstance(part, Runs) and not part.heads:
            low, high = (x[:, 0].cpu().numpy() for x in (part.start, part.stop))
        elif part.key_only and not part.heads:
            real = part.cells(*_positions(1, k_len))[:, 0, 0].numpy()
            seen = seen & real
            # The one row of a step may be given by the keys that it sees.
            low, high = real.argmax(1)[:, None], k_len - real[:, ::-1].argmax(1)[:, None]
        else:
            exact = False
            continue
        start, stop = np.maximum(start, low), np.minimum(stop, high)
    return start.astype(np.int64), np.maximum(start, stop).astype(np.int64), seen, exact


def _real(flags: Bools | None, k_len: int) -> Bools:
    return np.ones((1, k_len), np.bool_) if flags is None else flags


def _row_runs(start: Ints, stop: Ints, real: Bools) -> RowRuns:
    rank = np.pad(real.cumsum(1), ((0, 0), (1, 0)))
    batch = max(len(start), len(real))
    start, stop, rank = (np.broadcast_to(x, (batch, x.shape[1]))[:, None] for x in (start, stop, rank))
    count = (np.take_along_axis(rank, stop, 2) - np.take_along_axis(rank, start, 2)).clip(0)
    return RowRuns(count, np.where(count, start, 0), np.where(count, stop - 1, -1), real)


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate tables [B|1, n] along n."""
    sizes = set(map(len, parts))
    if len(sizes) > 1:
        parts = [part if len(part) > 1 else part.repeat(max(sizes), 0) for part in parts]
    return np.concatenate(parts, axis=1)


def _take_beams(table: NDArray[Any], origin: Tensor | None) -> NDArray[Any]:
    """Take each entry of a table [B|1, n] from the example that `origin` [N, n] names; None = return the table."""
    if origin is None:
        return table
    return table[origin.cpu().numpy().clip(0, len(table) - 1), np.arange(origin.shape[1])]
