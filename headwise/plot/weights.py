"""Computes the weights that a figure shows, and no others: exactly, some rows at a time.

If a matrix has more cells than the figure, each cell of the figure is the largest of a block of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headwise.plot.fonts import Letters
from headwise.plot.subject import Axis, Subject
from headwise.records import AttentionRecord

# The number of scores that are computed at once.
BLOCK_CELLS = 2**22

Array = NDArray[Any]


@dataclass(frozen=True)
class Weights:
    """The drawn weights, `values[r, c]`; NaN if all weights of a block are masked or hidden."""

    values: Array
    block: tuple[int, int]  # rows and columns per cell
    masked: bool  # whether any cell is masked
    hidden: int | None = None  # index of the hidden column among the requested ones

    @property
    def top(self) -> float:
        """The largest weight; 0 if there is none."""
        return float(np.fmax.reduce(self.values, axis=None, initial=0.0))


def compute_weights(subject: Subject, most: tuple[int, int], hidden: int | None = None) -> Weights:
    """Compute the weights as at most `most` = (rows, columns) cells; `hidden`: a column of the record to leave out."""
    rows, cols = subject.rows, subject.cols
    block = (-(-len(rows) // most[0]), -(-len(cols) // most[1]))
    left_out = list(cols.places).index(hidden) if hidden is not None and hidden in cols.places else None
    parts, masked = [], False
    batch, count = subject.record.shape[0], len(subject.heads)
    step = max(1, BLOCK_CELLS // (batch * count * subject.cols.size * block[0])) * block[0]
    for start in range(0, len(rows), step):
        weights, forbidden = _tile(subject, Axis("", rows.size, rows.places[start : start + step]))
        masked = masked or bool(forbidden.any())
        weights[forbidden] = np.nan
        if left_out is not None:
            weights[:, left_out] = np.nan
        parts.append(_pool(weights, block))
    return Weights(np.concatenate(parts), block, masked, left_out)


def _tile(subject: Subject, rows: Axis) -> tuple[Array, Array]:
    """Compute weights [rows, cols], the mean of the heads; and bool [rows, cols], True = masked in all heads."""
    record, cols = subject.record, subject.cols
    choice = None if len(cols) == cols.size and isinstance(cols.places, range) else cols.choice
    with torch.no_grad():
        weights = record.weights(rows.choice, choice, subject.heads)[subject.example].mean(0)
        forbidden = (record.scores(rows.choice, choice, subject.heads)[subject.example] == -torch.inf).all(0)
    return weights.cpu().numpy(), forbidden.cpu().numpy()


def _pool(x: Array, block: tuple[int, int]) -> Array:
    """Return the largest weight of each block, ignoring NaN; blocks at the end may be smaller."""
    for axis, size in enumerate(block):
        if size > 1:
            x = np.fmax.reduceat(x, np.arange(0, x.shape[axis], size), axis=axis)
    return x


def sink_key(record: AttentionRecord, example: int) -> int:
    """Return the first key to which any query of the example may attend."""
    used = None if record.mask is None else record.mask.used_keys(*record.shape[2:])
    if used is None:
        return 0
    return int(used[example if used.shape[0] > 1 else 0].any(0).to(torch.uint8).argmax())


def hidden_note(subject: Subject, weights: Weights, letters: Letters) -> list[str]:
    """Return a list with a note on the hidden key; [] if no key is hidden."""
    if weights.hidden is None:
        return []
    key = subject.cols.places[weights.hidden]
    with torch.no_grad():
        found = subject.record.weights(subject.rows.choice, [key], subject.heads)[subject.example]
    name = f"key {key} ({letters.of(subject.cols.name(key))})" if subject.cols.labels else f"key {key}"
    return [f"{name} is hidden: it takes {float(found.mean()):.0%} of the weight; the others are not rescaled"]
