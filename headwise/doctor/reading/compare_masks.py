"""Compares which query sees which key with what was declared, and names the difference.

All masks here are bool [Q, K], True = seen or allowed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

from headwise.masks import recognise

Kind = Literal["", "reversed", "outside", "ahead", "behind", "blocks", "gap", "other"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """How a mask differs from a causal one; "" if it does not hide what the other one shows, or the other way round."""

    kind: Kind
    by: int = 0  # keys
    row: int = 0  # the first query that it shows in


def distances(queries: int, keys: int) -> Tensor:
    """[Q, K]: how far each key stands after the query of the same number."""
    return torch.arange(keys)[None] - torch.arange(queries)[:, None]


def band(seen: Tensor) -> tuple[float, float] | None:
    """The lowest and highest k - q that is seen, if exactly the pairs between are; infinite where there is no end.

    >>> band(torch.ones(5, 5).tril(1).bool())
    (-inf, 1)
    """
    mask = recognise(seen)
    return (-math.inf, math.inf) if mask is None else mask.band()


def from_causal(seen: Tensor) -> Difference:
    """Name how what is seen differs from a causal mask of as many queries as keys.

    - "reversed": later keys alone are seen.
    - "outside": exactly what is far is seen: the complement of a window.
    - "ahead": a triangle that ends `by` keys too late; "behind": one that hides the query's own key as well.
    - "blocks": whole blocks see one another, and nothing later.
    - "gap": the `by` next keys are hidden, and those after them seen.
    - "other": some other keys of the future are seen.
    """
    n = len(seen)
    apart = distances(n, n)
    after, before = seen & (apart > 0), seen & (apart < 0)
    ends = band(seen)
    if n > 3 and is_outside(seen):
        return Difference("outside")
    if bool(after.any()) and not bool(before.any()) and after.sum() == n * (n - 1) // 2:
        return Difference("reversed")
    if ends is not None and ends[0] == -math.inf and -1 <= ends[1] < n - 1 and ends[1] != 0:
        return Difference("ahead" if ends[1] > 0 else "behind", abs(int(ends[1])))
    gap = hidden_ahead(seen)
    if gap is not None:
        return gap
    if not bool(after.any()):
        return Difference("")
    return Difference("blocks" if is_in_blocks(seen) else "other")


def is_outside(seen: Tensor) -> bool:
    """Whether a band around the diagonal is hidden, the query itself included, and all else seen: the past, or both."""
    apart = distances(*seen.shape)
    for near in range(1, min(seen.shape) - 1):
        far = apart.abs() > near
        if torch.equal(seen, far) or torch.equal(seen, far & (apart < 0)):
            return True
    return False


def is_in_blocks(seen: Tensor) -> bool:
    """Whether blocks of two tokens or more see all up to their own end: perhaps on purpose, or they are pooled."""
    at = torch.arange(len(seen))
    last = (seen * at).amax(1)  # the last key that each query sees
    sizes = last.unique(return_counts=True)[1]
    return torch.equal(seen, at <= last[:, None]) and bool((last >= at).all()) and len(sizes) > 1 < int(sizes.min())


def hidden_ahead(seen: Tensor) -> Difference | None:
    """Whether some queries see all keys up to one, not the next ones, and again those after them.

    `torch.tril` of a causal mask cuts it at a diagonal, and the numbers above it become 0: the far future is seen.
    """
    rows = {}
    for query, row in enumerate(seen):
        ends = (row[1:] != row[:-1]).nonzero()[:, 0].tolist()
        if bool(row[0]) and len(ends) in (2, 3):  # (of 3 the last is the end of a document)
            rows[query] = (ends[0], ends[1] - ends[0])
    lasts, sizes = [last for last, _ in rows.values()], {size for _, size in rows.values()}
    if len(rows) < 3 or len(sizes) > 1 or lasts != list(range(lasts[0], lasts[0] + len(lasts))):
        return None
    if all((last, size) == (query - 1, 1) for query, (last, size) in rows.items()):
        return None  # every query sees all but itself, as it is meant
    return Difference("gap", sizes.pop(), next(iter(rows)))


def corner(seen: Tensor) -> Literal["", "first", "last"]:
    """Which keys a causal mask of other queries than keys is aligned with: the first ones, or the last ones."""
    queries, keys = seen.shape
    ends = band(seen)
    if ends is None or ends[0] > -keys or ends[1] not in (0, keys - queries):
        return ""
    return "first" if ends[1] == 0 else "last"


def goes_round(seen: Tensor) -> Tensor | None:
    """[Q]: which queries see keys from both ends of the sequence, if every query sees as many keys, side by side where
    the last is taken to stand before the first; else None.
    """
    keys, starts = seen.sum(1), (seen & ~seen.roll(1, 1)).sum(1)
    both = seen[:, 0] & seen[:, -1]
    even = bool((keys == keys[0]).all()) and bool((starts == 1).all())
    return both if even and bool(both.any()) and not bool(both.all()) else None


def uneven_rows(seen: Tensor) -> tuple[int, int] | None:
    """The first row of a causal window that sees fewer keys than its neighbours, and how many these see; else None."""
    n = len(seen)
    apart = -distances(n, n)
    if bool(seen[apart < 0].any()) or not bool(seen.any()):
        return None
    left = int(apart[seen].max())
    full = (apart >= 0) & (apart <= left)
    wrong = (seen != full).any(1)
    if left == n - 1 or not bool(wrong.any()) or int(wrong.sum()) * 2 >= n:
        return None
    row = int(wrong.nonzero()[0])
    return row, int(full[row].sum())
