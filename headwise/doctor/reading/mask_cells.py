"""What a mask did to scores, cell by cell, against what it says: functions of matrices alone.

`compare` takes the scores of two calls, one without the mask and one with it, and the cells that the mask hides.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from headwise.doctor.reading.events import FORBIDDEN

SAFE = -9e3  # a fill that ordinary scores do not reach
ORDINARY = -50.0  # a masked score above it may keep a weight beside scores that are not large

Kind = Literal[
    "right",  # it hides what it should: `value` is the highest score that is left, `step` the least that was taken
    "nothing",  # it does not touch the scores
    "unclear",
    # It hides other cells.
    "inverted",
    "all",  # also where it should hide none
    "opened",  # it shows cells that were hidden without it
    "other example",
    "queries",
    "elsewhere",
    # It hides no cell.
    "filled",  # with `value`, an ordinary score
    "lowered",  # by `step`
    "added",  # `step`: as it is, 0 or 1
    "multiplied",
]


@dataclasses.dataclass(frozen=True)
class Act:
    """What a mask did."""

    kind: Kind
    value: float = 0.0
    step: float = 0.0
    cells: int = 0
    of: int = 0
    place: tuple[int, int, int] = (0, 0, 0)  # of "other example": the example, its head, and the other example


def compare(before: Tensor, after: Tensor, hidden: Tensor, free: Tensor | None = None) -> Act:
    """Name what a mask did to scores.

    Args:
        before: [B, H, Q, K], the scores without the mask; NaN and less than `FORBIDDEN` where nobody may look.
        after: the same with the mask.
        hidden: bool, which broadcasts to them: the cells that the mask hides.
        free: bool, which broadcasts to them: cells that it may treat as it likes, such as rows of padding.
    """
    hidden = hidden.expand(before.shape)
    free = torch.zeros_like(hidden) if free is None else free.expand(before.shape)
    open_ = before.isfinite() & (before > FORBIDDEN)
    if not bool(open_.any()):
        return Act("all")
    opened = ~open_ & after.isfinite() & (after > FORBIDDEN) & ~free
    if bool(opened.any()):
        return Act("opened", cells=int(opened.sum()), of=int((~open_).sum()))
    change = torch.where(open_, after - before, 0.0).nan_to_num(0.0, 0.0, -torch.inf)
    touched = change.abs() > 1e-4 * float(before[open_].abs().max())
    if not bool(touched.any()):
        return Act("nothing")
    closed = open_ & ((after <= FORBIDDEN) | (change <= FORBIDDEN))
    if not bool(closed.any()):
        return _weak(before, after, change, touched, open_, hidden)
    wrong = (closed != hidden) & open_
    if not bool((wrong & ~free).any()):
        cells = hidden & open_ & ~wrong
        return Act("right", value=float(after[cells].max()), step=float(change[cells].max()))
    return _misplaced(closed, hidden, open_, wrong)


def _weak(before: Tensor, after: Tensor, change: Tensor, touched: Tensor, open_: Tensor, hidden: Tensor) -> Act:
    """Name a mask that changes scores and hides none."""
    hidden, shown = hidden & open_, ~hidden & open_
    for cells, others in ((hidden, shown), (shown, hidden)):
        if not bool(cells.any()) or bool(touched[others].any()):
            continue
        if cells is hidden and alike(after[cells], 1e-6):
            value = float(after[cells].mean())
            return Act("multiplied") if value == 0 else Act("filled", value=value)
        if alike(change[cells], 1e-4):
            step = float(change[cells].mean())
            if abs(step) <= 1.5:
                return Act("added", step=step, cells=int(cells is hidden))
            return Act("lowered" if step < 0 and cells is hidden else "unclear", step=step)
    if bool((after[hidden].abs() < 1e-9).all()) or alike((after / before)[touched], 1e-4):
        return Act("multiplied")
    return Act("unclear")


def _misplaced(closed: Tensor, hidden: Tensor, open_: Tensor, wrong: Tensor) -> Act:
    """Name a mask that hides other cells than it says."""
    if _same(closed, ~hidden, open_):
        return Act("inverted")
    batch, heads = closed.shape[:2]
    theirs = [
        [next((x for x in range(batch) if _same(closed[b, h], hidden[x, 0], open_[b, h])), -1) for h in range(heads)]
        for b in range(batch)
    ]
    if all(x >= 0 for row in theirs for x in row):
        b, h = next((b, h) for b in range(batch) for h in range(heads) if theirs[b][h] != b)
        return Act("other example", place=(b, h, theirs[b][h]))
    if bool((closed == closed[..., :1])[open_].all()):
        return Act("queries")
    return Act("elsewhere", cells=int(wrong.sum()), of=int(open_.sum()))


def lost(before: Tensor, after: Tensor, hidden: Tensor) -> float | None:
    """The least sum of a row of weights, [B, H, Q, K], from which a mask took some; None if none lost any.

    Weights that were set to 0 and divided by what is left have lost nothing.
    """
    if before.shape != after.shape or torch.allclose(before, after, atol=1e-6, equal_nan=True):
        return None
    hidden = hidden.expand(before.shape)
    rows = hidden.any(-1) & ~hidden.all(-1)
    sums = after.nan_to_num().sum(-1)[rows]
    return None if not len(sums) or bool(((sums - 1).abs() < 1e-3).all()) else float(sums.min())


def future(scores: Tensor) -> float | None:
    """The ordinary score, alike in all of them, that later keys have, [B, H, N, N]; None if there is none.

    Products of queries and keys all differ, so that somebody filled these.
    """
    n = scores.shape[-1]
    if n < 3 or scores.shape[-2] != n:
        return None
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    of_later, others = scores[..., later], scores[..., ~later]
    filled = bool((of_later == of_later.flatten()[0]).all()) and not bool((others == others.flatten()[0]).all())
    value = float(of_later.flatten()[0])
    return value if filled and value > FORBIDDEN else None


def alike(x: Tensor, within: float) -> bool:
    """Whether all numbers are one."""
    return bool((x - x.mean()).abs().max() < within * (1 + x.abs().max()))


def _same(a: Tensor, b: Tensor, where: Tensor) -> bool:
    return bool((a == b)[where].all())
