"""Masks in which each query sees one run of consecutive keys: two numbers per query."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.extent import Rectangles, make_extent
from headwise.masks.fields import INTEGERS, table
from headwise.masks.mask import Mask
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import has_true, integer_table, look_up


def runs(start: Sequence[int] | Tensor, stop: Sequence[int] | Tensor) -> Mask:
    """Let query q see the keys from `start[q]` up to, but not including, `stop[q]`; no key if the two are equal.

    `start` and `stop` are integers [Q], or [B|1, H|1, Q], and broadcast together. With two numbers per query, they
    express masks that no other function here does in linear size: images inside a causal text, chunks of different
    lengths in each example, rows of padding that see all keys.

    >>> print(runs([0, 0, 2, 1], [1, 2, 4, 1]).draw(4))
    ■ · · ·
    ■ ■ · ·
    · · ■ ■
    · · · ·
    """
    tables = [integer_table(f"runs: {name}", x, (1, 2, 3)) for name, x in (("start", start), ("stop", stop))]
    try:
        first, last = torch.broadcast_tensors(*(x[(None,) * (3 - x.ndim)] for x in tables))
    except RuntimeError:
        received = f"start={list(tables[0].shape)}, stop={list(tables[1].shape)}"
        raise MaskError(f"runs: start and stop must be [Q] or [B, H, Q] and broadcast. Received: {received}") from None
    longest = torch.iinfo(torch.int32).max
    wrong = ((first < 0) | (last < first) | (last > longest)).nonzero()
    if len(wrong):
        run = f"[{first[tuple(wrong[0])]}, {last[tuple(wrong[0])]})"
        raise MaskError(f"runs: expected 0 <= start <= stop <= {longest} for every query. Received: {run}")
    return Runs(first.to(torch.int32), last.to(torch.int32))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Runs(Mask, kind="runs"):
    """A mask that allows a pair if start[b, h, q] <= k < stop[b, h, q]. Its answers for rectangles are exact."""

    start: Tensor = table("BHq", *INTEGERS)
    stop: Tensor = table("BHq", *INTEGERS)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return (k >= look_up(self.start, b, h, q)) & (k < look_up(self.stop, b, h, q))

    def extents(self, r: Rectangles) -> Tensor:
        q_lo, q_hi = torch.broadcast_tensors(r.q_lo, r.q_hi)
        k_lo, k_hi = r.k_lo, r.k_hi
        start, stop = self.start.cpu(), self.stop.cpu()
        first, last, inner_first, inner_last = self._ends(q_lo, q_hi)
        every = (inner_first <= k_lo) & (k_hi <= inner_last)
        some = (first < k_hi) & (last > k_lo)
        # A rectangle between these ends may still fall into a gap between the runs. It does not if its top or bottom
        # row meets its keys, as is often the case.
        sure = every
        for row in (q_lo, q_hi - 1):
            sure = sure | _meet(start[:, :, row], stop[:, :, row], k_lo, k_hi)
        unsure = some & ~sure if r.wanted is None else some & ~sure & r.wanted
        return make_extent(self._settled(some, unsure, q_lo, q_hi, k_lo, k_hi), every)

    def _ends(self, q_lo: Tensor, q_hi: Tensor) -> list[Tensor]:
        """Return, for rows [q_lo, q_hi): first and last key that some row sees, first and last key that all rows see.

        Each "last" is one past the key. The result does not depend on keys, because few ranges of rows are combined
        with many ranges of keys.
        """
        start, stop = self.start.cpu(), self.stop.cpu()
        steps = torch.arange(int((q_hi - q_lo).max()) if q_lo.numel() else 0, device="cpu")
        chunk = max(1, BLOCK // max(1, len(steps) * start.shape[0] * start.shape[1]))
        found = []
        for lo, hi in zip(q_lo.flatten().split(chunk), q_hi.flatten().split(chunk), strict=True):
            # A range shorter than the longest repeats its last row, which changes no minimum and no maximum.
            rows = torch.minimum(lo[:, None] + steps, hi[:, None] - 1)
            begin, end = start[:, :, rows], stop[:, :, rows]
            found.append(torch.stack([begin.amin(-1), end.amax(-1), begin.amax(-1), end.amin(-1)]))
        return list(torch.cat(found, dim=-1).unflatten(-1, q_lo.shape))

    def _settled(self, some: Tensor, unsure: Tensor, *bounds: Tensor) -> Tensor:
        """Return `some` (bool, for each rectangle), after a row-by-row answer for the `unsure` rectangles."""
        b, h, *rest = unsure.nonzero(as_tuple=True)
        if not len(b):
            return some
        start, stop = self.start.cpu(), self.stop.cpu()
        q_lo, q_hi, k_lo, k_hi = (torch.broadcast_to(x, some.shape[2:])[tuple(rest)][:, None] for x in bounds)
        steps = torch.arange(int((q_hi - q_lo).max()), device="cpu")
        answers = []
        for part in torch.arange(len(b), device="cpu").split(max(1, BLOCK // len(steps))):
            rows = torch.minimum(q_lo[part] + steps, q_hi[part] - 1)
            row = (b[part, None], h[part, None], rows)
            answers.append(_meet(start[row], stop[row], k_lo[part], k_hi[part]).any(-1))
        return some.index_put((b, h, *rest), torch.cat(answers))

    def seen_keys(self, q_len: int, k_len: int) -> Tensor:
        # A key is seen if more runs have begun before it than have ended.
        start, stop = self.start.cpu().long(), self.stop.cpu().long()
        change = torch.zeros((*start.shape[:2], k_len + 1), dtype=torch.int32, device="cpu")
        one = torch.ones_like(start, dtype=torch.int32)
        change.scatter_add_(-1, start, one).scatter_add_(-1, stop, -one)
        return change.cumsum(-1)[..., :k_len] > 0

    def check(self, q_len: int, k_len: int) -> None:
        if self.start.shape != self.stop.shape:
            raise MaskError(
                f"runs: start and stop must have one shape. Received: start={list(self.start.shape)}, "
                f"stop={list(self.stop.shape)}"
            )
        if has_true((self.start < 0) | (self.stop < self.start)):
            raise MaskError("runs: expected 0 <= start <= stop for every query")
        super().check(q_len, k_len)
        if has_true(self.stop > k_len):
            raise MaskError(f"runs: expected runs within the {k_len} keys. Received: stop up to {int(self.stop.max())}")

    def natural_lengths(self) -> tuple[int, int] | None:
        q_len = self.start.shape[2]
        return q_len, max(q_len, int(self.stop.max()) if q_len else 0)


BLOCK = 2**22  # the number of rows that are compared at a time


def _meet(start: Tensor, stop: Tensor, k_lo: Tensor, k_hi: Tensor) -> Tensor:
    """Whether the run [start, stop) contains any of the keys [k_lo, k_hi)."""
    return (start < stop) & (start < k_hi) & (stop > k_lo)
