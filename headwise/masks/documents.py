"""Packed sequences: several documents in one row, none of which may see another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import counts, integer_table, look_up


def documents(ids: Sequence[int] | Tensor) -> Mask:
    """Each query sees the keys of its own document: ids [K] or [B, K], an integer a position; a negative id is padding.

    Padding sees nothing and is seen by nobody: its output is 0. Combine with `causal()` for packed language modelling.

    >>> print(documents([0, 0, 1, 1, -1]).draw(5))
    ■ ■ · · ·
    ■ ■ · · ·
    · · ■ ■ ·
    · · ■ ■ ·
    · · · · ·
    """
    table = integer_table("documents: ids", ids, (1, 2))
    return Documents(table if table.ndim == 2 else table[None])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """ids[b, q + offset] == ids[b, k] >= 0.

    Its rectangles are exact where the ids of a row never decrease (padding at the ends); else a rectangle that crosses
    a boundary between documents is called SOME.
    """

    ids: Tensor  # [B, K], or [1, K] for all examples
    offset: int | None = None

    @property
    def batch(self) -> int | None:
        return len(self.ids) if len(self.ids) > 1 else None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        b = b if self.batch else b * 0
        query_id = look_up(self.ids, b, q + (self.offset or 0))
        return (query_id == look_up(self.ids, b, k)) & (query_id >= 0)

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        ids, changes, ordered = self.remember(("tables",), self._tables)
        offset = self.offset or 0
        first_q, last_q = ids[:, q_lo + offset], ids[:, q_hi - 1 + offset]
        first_k, last_k = ids[:, k_lo], ids[:, k_hi - 1]
        # One document throughout where no id changes between the first and the last position.
        one_q = changes[:, q_hi + offset] == changes[:, q_lo + offset + 1]
        one_k = changes[:, k_hi] == changes[:, k_lo + 1]
        padding = (one_q & _is_padding(first_q)) | (one_k & _is_padding(first_k))
        all_allowed = one_q & one_k & (first_q == first_k) & ~padding
        apart = padding | (one_q & one_k & (first_q != first_k))
        # In order, the documents of queries and keys meet only if their ranges do; padding is all before or all after.
        apart_in_order = (last_q < first_k) | (last_k < first_q)
        in_order = ordered.view(-1, *[1] * (apart.ndim - 1))
        return extent_of(~(apart | (in_order & apart_in_order)), all_allowed)[:, None]

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """(ids with padding first or last in order, running counts of the changes, whether a row is in order)."""
        ids = self.ids.cpu()
        started = (ids >= 0).cummax(-1).values
        ids = torch.where(ids >= 0, ids, torch.where(started, _AFTER, -1))
        steps = ids[:, 1:] != ids[:, :-1]
        changed = torch.nn.functional.pad(steps, (1, 0))
        return ids, counts(changed), (ids[:, 1:] >= ids[:, :-1]).all(-1)

    def align(self, q_len: int, k_len: int) -> Mask:
        if self.ids.shape[1] != k_len or q_len > k_len:
            raise MaskError(
                f"documents: expected an id for each of the {k_len} keys, and no more queries than keys. "
                f"Received: ids {list(self.ids.shape)}, {q_len} queries"
            )
        return self if self.offset is not None else dataclasses.replace(self, offset=k_len - q_len)

    def natural_lengths(self) -> tuple[int, int] | None:
        return self.ids.shape[1], self.ids.shape[1]

    def __repr__(self) -> str:
        rows, length = self.ids.shape
        shape = f"[{length}]" if rows == 1 else f"[{rows}, {length}]"
        return f"documents({self.ids[0].tolist()})" if rows == 1 and length <= 12 else f"documents(<ids {shape}>)"


_AFTER = 2**62


def _is_padding(ids: Tensor) -> Tensor:
    return (ids < 0) | (ids == _AFTER)
