"""Functions for tables of cells (pairs of a query and a key): cut tables, and compute the extent codes of blocks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.masks.extent import make_extent
from headwise.tracing import is_traced


def axis(size: int | None, only: int | None, device: torch.device) -> Tensor:
    """Return the indices of the examples or heads for which to evaluate a mask: [0] if `size` is None (all are alike).

    Otherwise they are [only], or 0 … size - 1 if `only` is None.
    """
    if size is None:
        return torch.zeros(1, dtype=torch.long, device=device)
    return torch.arange(size, device=device) if only is None else torch.tensor([only], device=device)


def make_strip_extents(strips: Iterable[tuple[Tensor, Tensor]], width: int, *, whole: int) -> Tensor:
    """Compute extent codes of blocks `width` columns wide, from (highest, lowest) values of each column of each strip.

    A strip is a row of blocks; an extent code says that none, some or all cells of a block are allowed. A value is 0
    where nothing is allowed, and `whole` where everything is. The values of a strip are [B, H, n]; the codes are [B, H,
    strips, ⌈n/width⌉].
    """
    found = []
    for highest, lowest in strips:
        fill = (0, -highest.shape[-1] % width)  # the fill does not change the answer
        some = pad(highest, fill).unflatten(-1, (-1, width)).amax(-1) > 0
        every = pad(lowest, fill, value=whole).unflatten(-1, (-1, width)).amin(-1) == whole
        found.append(make_extent(some, every))
    return torch.stack(found, dim=2).cpu()


def of_one(table: Tensor, b: int | None, h: int | None) -> Tensor:
    """Cut a table [B|1, H|1, ...] to one example `b` and one head `h`; None = keep all examples, or all heads."""
    examples = slice(None) if b is None or len(table) == 1 else slice(b, b + 1)
    heads = slice(None) if h is None or table.shape[1] == 1 else slice(h, h + 1)
    return table[examples, heads]


def as_slice(index: Tensor) -> slice | Tensor:
    """Return an index of consecutive numbers on the CPU as a slice, which is quicker; any other index as it is.

    (On another device the check would have to wait for that device.)
    """
    if index.device.type != "cpu" or not len(index) or is_traced():
        return index
    first, last = int(index[0]), int(index[-1])
    consecutive = last - first + 1 == len(index) and bool((index[1:] - index[:-1] == 1).all())
    return slice(first, last + 1) if consecutive else index
