"""Answers that need single cells: rectangles of masks that are known only by cells, and keys that no query sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.masks.extent import Extent, Rectangles, extent_of
from headwise.tracing import is_traced

if TYPE_CHECKING:
    from headwise.masks.mask import Mask


def evaluate_rectangles(mask: Mask, r: Rectangles) -> Tensor:
    """Extent codes by evaluating every cell of the wanted rectangles, some rectangles at a time."""
    shape = r.shape
    wanted = torch.ones((), dtype=torch.bool, device="cpu") if r.wanted is None else r.wanted
    keep = torch.broadcast_to(wanted, shape)
    device = mask.device or torch.device("cpu")
    q0, q1, k0, k1 = (torch.broadcast_to(x, shape)[keep].to(device=device) for x in (r.q_lo, r.q_hi, r.k_lo, r.k_hi))
    b_size, h_size = mask.batch or 1, mask.heads or 1
    codes = torch.zeros((b_size, h_size, *shape), dtype=torch.int8, device="cpu")
    if r.coarse:
        return torch.full_like(codes, Extent.SOME)
    if not len(q0):
        return codes
    # A rectangle smaller than the largest repeats its last row and column, which changes neither "any" nor "all".
    rows = torch.arange(int((q1 - q0).max()), device=device)
    cols = torch.arange(int((k1 - k0).max()), device=device)
    b_index = axis(mask.batch, None, device)[:, None, None, None, None]
    h_index = axis(mask.heads, None, device)[:, None, None, None]
    chunk = max(1, 2**22 // (len(rows) * len(cols) * b_size * h_size))
    found = []
    for q_lo, q_hi, k_lo, k_hi in zip(*(x[:, None].split(chunk) for x in (q0, q1, k0, k1)), strict=True):
        q = torch.minimum(q_lo + rows, q_hi - 1)[:, :, None]
        k = torch.minimum(k_lo + cols, k_hi - 1)[:, None, :]
        allowed = mask.allows(b_index, h_index, q, k)
        allowed = torch.broadcast_to(allowed, (b_size, h_size, len(q), len(rows), len(cols))).flatten(-2)
        found.append(extent_of(allowed.any(-1), allowed.all(-1)))
    codes[:, :, keep] = torch.cat(found, dim=-1).cpu()
    return codes


def seen_keys(mask: Mask, q_len: int, k_len: int) -> Tensor:
    """The keys that some query may attend to, bool [B|1, H|1, K]: exact, though few cells are looked at."""
    # Nearly every mask lets a key be seen by the query at its own position: one cheap look settles those keys.
    k = torch.arange(k_len, device=mask.device or "cpu")
    own = (k - (k_len - q_len)).clamp(0, q_len - 1)
    b_index = axis(mask.batch, None, k.device)[:, None, None]
    h_index = axis(mask.heads, None, k.device)[:, None]
    shape = (len(b_index), len(h_index), k_len)
    used = torch.broadcast_to(mask.allows(b_index, h_index, own, k), shape).cpu().clone()
    left = (~used).flatten(0, 1).any(0).nonzero()[:, 0]
    if len(left):
        zero = torch.zeros_like(left)
        codes = mask.rectangles(zero, zero + q_len, left, left + 1)
        used[..., left] |= codes == Extent.ALL
        # SOME may be conservative in a composition, and is a true "some" elsewhere; evaluating the column settles it.
        unsure = left[((codes == Extent.SOME) & ~used[..., left]).flatten(0, 1).any(0)]
        queries = torch.arange(q_len, device=k.device)
        chunk = max(1, 2**22 // (q_len * used.shape[0] * used.shape[1]))
        for keys in unsure.split(chunk):
            used[..., keys] |= mask.cells(queries, keys.to(queries.device)).any(-2).cpu()
    return used


def axis(size: int | None, only: int | None, device: torch.device) -> Tensor:
    """The indices of examples or heads to ask a mask about: one if all are equal, or if only one is wanted."""
    if size is None:
        return torch.zeros(1, dtype=torch.long, device=device)
    return torch.arange(size, device=device) if only is None else torch.tensor([only], device=device)


def extents_of_strips(strips: Iterable[tuple[Tensor, Tensor]], width: int, *, whole: int) -> Tensor:
    """Extent codes of blocks `width` columns wide, from the highest and the lowest value of each column of a strip.

    A value is 0 where nothing is allowed, and `whole` where all is. Strips [B, H, n]; codes [B, H, strips, ⌈n/width⌉].
    """
    found = []
    for highest, lowest in strips:
        fill = (0, -highest.shape[-1] % width)  # the fill does not change the answer
        some = pad(highest, fill).unflatten(-1, (-1, width)).amax(-1) > 0
        every = pad(lowest, fill, value=whole).unflatten(-1, (-1, width)).amin(-1) == whole
        found.append(extent_of(some, every))
    return torch.stack(found, dim=2).cpu()


def of_one(table: Tensor, b: int | None, h: int | None) -> Tensor:
    """A table [B|1, H|1, ...] cut to one example or one head, if they are given."""
    examples = slice(None) if b is None or len(table) == 1 else slice(b, b + 1)
    heads = slice(None) if h is None or table.shape[1] == 1 else slice(h, h + 1)
    return table[examples, heads]


def as_slice(index: Tensor) -> slice | Tensor:
    """An index tensor as a slice, if it is one: much quicker on the CPU (on other devices the check would wait)."""
    if index.device.type != "cpu" or not len(index) or is_traced():
        return index
    first, last = int(index[0]), int(index[-1])
    consecutive = last - first + 1 == len(index) and bool((index[1:] - index[:-1] == 1).all())
    return slice(first, last + 1) if consecutive else index
