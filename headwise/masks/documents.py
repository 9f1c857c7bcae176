"""Packed sequences: several documents in one row, none of which may see another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.extent import Rectangles, make_extent
from headwise.masks.fields import INTEGERS, number, table
from headwise.masks.mask import Mask
from headwise.masks.memo import converted, find_source
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import counts, integer, integer_table, look_up


def documents(ids: Sequence[int] | Tensor, offset: int | None = None) -> Mask:
    """Let each query see the keys of its own document.

    `ids` [K] or [B, K]: the document of each position; negative = padding. Padding sees nothing and is seen by no
    query: its output is 0. Combine with `causal()` for packed language modelling. `offset` is the position of the first
    query, from 0 to K - Q; None means K - Q.

    >>> print(documents([0, 0, 1, 1, -1]).draw(5))
    ■ ■ · · ·
    ■ ■ · · ·
    · · ■ ■ ·
    · · ■ ■ ·
    · · · · ·
    """
    found = integer_table("documents: ids", ids, (1, 2))
    found = found if found.ndim == 2 else converted(find_source(found)[None], found.dtype)
    return Documents(found, integer("documents: offset", offset, optional=True))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask, kind="documents"):
    """A mask that allows a pair if ids[b, q + offset] == ids[b, k] >= 0.

    Its `extents` are exact where the ids of an example never decrease (with padding only at the ends). Otherwise the
    answer for a rectangle that crosses a boundary between documents is SOME.
    """

    ids: Tensor = table("Bk", *INTEGERS)
    offset: int | None = number(optional=True)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        query_id = look_up(self.ids, b, q + self.shift)
        return (query_id == look_up(self.ids, b, k)) & (query_id >= 0)

    def extents(self, r: Rectangles) -> Tensor:
        ids, places, changes, ordered = self.remember(("tables",), Documents._tables)
        q_lo, q_hi = r.q_lo + self.shift, r.q_hi + self.shift
        of_q, of_k = ids[:, q_lo], ids[:, r.k_lo]
        # A rectangle is in one document if no id changes between its first and its last position.
        one_q = changes[:, q_hi] == changes[:, q_lo + 1]
        one_k = changes[:, r.k_hi] == changes[:, r.k_lo + 1]
        padding = (one_q & (of_q < 0)) | (one_k & (of_k < 0))
        all_allowed = one_q & one_k & (of_q == of_k) & ~padding
        apart = padding | (one_q & one_k & (of_q != of_k))
        # In sorted ids, queries and keys share a document only if their ranges of ids overlap; padding is at the ends.
        apart_in_order = (places[:, q_hi - 1] < places[:, r.k_lo]) | (places[:, r.k_hi - 1] < places[:, q_lo])
        in_order = ordered.view(-1, *[1] * (apart.ndim - 1))
        return make_extent(~(apart | (in_order & apart_in_order)), all_allowed)[:, None]

    def _tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the tables from which `extents` answers: (ids, sorted ids, counts of changes, is in order).

        The sorted ids are the ids in which padding has a number that keeps the order: -1 before the documents, the
        largest integer after them. The counts say how often the id changes up to each position. An example is in order
        if its sorted ids never decrease.
        """
        ids = self.ids.cpu().long()
        started = (ids >= 0).cummax(-1).values
        places = torch.where(ids >= 0, ids, torch.where(started, torch.iinfo(ids.dtype).max, -1))
        changed = torch.nn.functional.pad(ids[:, 1:] != ids[:, :-1], (1, 0))
        return ids, places, counts(changed), (places[:, 1:] >= places[:, :-1]).all(-1)

    def natural_lengths(self) -> tuple[int, int]:
        k_len = self.ids.shape[1]
        return k_len - self.shift, k_len

    def check(self, q_len: int, k_len: int) -> None:
        super().check(q_len, k_len)
        check_queries_among_keys("documents", self.offset, q_len, k_len)


def check_queries_among_keys(name: str, offset: int | None, q_len: int, k_len: int) -> None:
    """Raise MaskError unless the position of each query is the position of a key."""
    if q_len > k_len:
        raise MaskError(f"{name}: expected no more queries than keys. Received: Q={q_len}, K={k_len}")
    if offset is not None and not 0 <= offset <= k_len - q_len:
        raise MaskError(f"{name}: expected an offset from 0 to K - Q = {k_len - q_len}. Received: offset={offset}")
