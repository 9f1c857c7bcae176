"""Attention knockout: some queries may not attend to some keys, in some heads (Geva et al. 2023)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import DtypeError, MaskError, brief
from headwise.masks.extent import Rectangles, make_extent
from headwise.masks.fields import table
from headwise.masks.mask import Mask
from headwise.masks.memo import converted
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import as_tensor, counts, has_true, look_up


def knockout(
    queries: Sequence[bool] | Tensor, keys: Sequence[bool] | Tensor, heads: Sequence[bool] | Tensor | None = None
) -> Mask:
    """Block the pairs of a chosen query and a chosen key in a chosen head, and allow all others. True or 1 = chosen.

    queries: bool [Q] or [B, Q]; keys: bool [K] or [B, K]; heads: bool [H] or [B, H], None = all.

    >>> print(knockout([False, False, True], [True, False, False]).draw(3))
    ■ ■ ■
    ■ ■ ■
    · ■ ■
    """
    tables = [_flags("queries", queries), _flags("keys", keys)]
    tables.append(tables[0].new_ones(1, 1) if heads is None else _flags("heads", heads))
    if len({len(each) for each in tables} - {1}) > 1:
        raise MaskError(
            f"knockout: expected one number of examples. Received: {', '.join(str(len(each)) for each in tables)}"
        )
    return Knockout(*tables)


def _flags(name: str, values: Sequence[bool] | Tensor) -> Tensor:
    found = as_tensor(f"knockout: {name}", values)
    if (
        found.is_floating_point()
        or found.is_complex()
        or (found.dtype != torch.bool and has_true((found != 0) & (found != 1)))
    ):
        raise DtypeError(f"knockout: {name}: expected bool, True = blocked. Received: {brief(values)}")
    if found.ndim not in {1, 2} or 0 in found.shape[:-1]:
        raise MaskError(f"knockout: {name}: expected one or two dimensions. Received: {list(found.shape)}")
    return converted(found if found.ndim == 2 else found[None], torch.bool)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Knockout(Mask, kind="knockout"):
    """A mask that allows a pair unless queries[b, q], keys[b, k] and chosen[b, h] are True. Its `extents` are exact."""

    queries: Tensor = table("Bq", torch.bool)
    keys: Tensor = table("Bk", torch.bool)
    chosen: Tensor = table("BH", torch.bool)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        blocked = look_up(self.chosen, b, h) & look_up(self.queries, b, q) & look_up(self.keys, b, k)
        return not blocked if isinstance(blocked, bool) else ~blocked

    def extents(self, r: Rectangles) -> Tensor:
        """Return NONE where all pairs of a rectangle are blocked, ALL where no pair is blocked, SOME elsewhere."""
        of_queries, of_keys = self.remember(("counts",), lambda mask: (counts(mask.queries), counts(mask.keys)))
        queries, rows = of_queries[:, r.q_hi] - of_queries[:, r.q_lo], r.q_hi - r.q_lo
        keys, cols = of_keys[:, r.k_hi] - of_keys[:, r.k_lo], r.k_hi - r.k_lo
        cells = self.chosen.cpu().view(*self.chosen.shape, *[1] * r.q_lo.ndim)
        some = cells & ((queries > 0) & (keys > 0))[:, None]
        every = cells & ((queries == rows) & (keys == cols))[:, None]
        return make_extent(~every, ~some)
