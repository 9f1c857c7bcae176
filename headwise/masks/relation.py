"""The base of all masks: a relation between queries and keys, which says which query may attend to which key.

`allows(b, h, q, k)` answers for single cells (pairs of a query and a key), and `extents(rectangles)` for whole
rectangles of cells. All else follows from these two answers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.masks import cells
from headwise.masks.extent import Extent, Rectangles, make_extent

# The arguments and results of `allows`: ints and bools, or NumPy, torch or Keras arrays of them that broadcast.
Index = Any
Allowed = Any


class Relation:
    """Which queries may attend to which keys, for given numbers of queries and keys.

    A subclass defines `allows` and, where it can find the answer without evaluating every cell, `extents`.
    """

    @property
    def batch(self) -> int | None:
        """The number of examples for which the relation has different answers; None if all examples have the same."""
        return None

    @property
    def heads(self) -> int | None:
        """The number of query heads for which the relation has different answers; None if all heads have the same."""
        return None

    @property
    def device(self) -> torch.device | None:
        """The device of the relation's tensors; None if it has no tensors."""
        return None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        """Whether query `q` may attend to key `k` in example `b`, head `h`: ints, or integer arrays that broadcast."""
        raise NotImplementedError

    def extents(self, r: Rectangles) -> Tensor:
        """Return the extent codes of rectangles, int8, which broadcast to [B|1, H|1, *r.shape].

        0 = NONE, 1 = SOME, 2 = ALL pairs of the rectangle are allowed. ALL and NONE are never wrong. Where `r.wanted`
        is False the answer is not used, and need not be computed. This default evaluates every cell.
        """
        shape = r.shape
        wanted = torch.ones((), dtype=torch.bool, device="cpu") if r.wanted is None else r.wanted
        keep = torch.broadcast_to(wanted, shape)
        device = self.device or torch.device("cpu")
        q0, q1, k0, k1 = (
            torch.broadcast_to(x, shape)[keep].to(device=device) for x in (r.q_lo, r.q_hi, r.k_lo, r.k_hi)
        )
        b_size, h_size = self.batch or 1, self.heads or 1
        codes = torch.zeros((b_size, h_size, *shape), dtype=torch.int8, device="cpu")
        if r.coarse:
            return torch.full_like(codes, Extent.SOME)
        if not len(q0):
            return codes
        # A rectangle smaller than the largest repeats its last row and column, which changes neither "any" nor "all".
        rows = torch.arange(int((q1 - q0).max()), device=device)
        cols = torch.arange(int((k1 - k0).max()), device=device)
        b_index = cells.axis(self.batch, None, device)[:, None, None, None, None]
        h_index = cells.axis(self.heads, None, device)[:, None, None, None]
        chunk = max(1, 2**22 // (len(rows) * len(cols) * b_size * h_size))
        found = []
        for q_lo, q_hi, k_lo, k_hi in zip(*(x[:, None].split(chunk) for x in (q0, q1, k0, k1)), strict=True):
            q = torch.minimum(q_lo + rows, q_hi - 1)[:, :, None]
            k = torch.minimum(k_lo + cols, k_hi - 1)[:, None, :]
            allowed = self.allows(b_index, h_index, q, k)
            allowed = torch.broadcast_to(allowed, (b_size, h_size, len(q), len(rows), len(cols))).flatten(-2)
            found.append(make_extent(allowed.any(-1), allowed.all(-1)))
        codes[:, :, keep] = torch.cat(found, dim=-1).cpu()
        return codes

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        """Return the extent codes of rectangles [q_lo, q_hi) × [k_lo, k_hi), none empty: int8 [B|1, H|1, *shape].

        The bounds are integer tensors that broadcast to `shape`. A code says that NONE, SOME or ALL pairs are allowed;
        ALL and NONE are never wrong. Where `wanted` (bool, `shape`) is False the answer is not used.
        """
        rank = max(x.ndim for x in (q_lo, q_hi, k_lo, k_hi))
        bounds = [x[(None,) * (rank - x.ndim)] for x in (q_lo, q_hi, k_lo, k_hi)]
        r = Rectangles(bounds[0], bounds[1], bounds[2], bounds[3], wanted)
        shape = r.shape
        codes = self.extents(r) if shape.numel() else self.nothing(*shape)
        return codes.expand(*codes.shape[:2], *shape)

    def extent(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> Any:
        """Say how many of the pairs of the rectangle [q_lo, q_hi) × [k_lo, k_hi) are allowed: ALL, SOME or NONE.

        With ints, the result is one `Extent` for all examples and heads together. With integer tensors that broadcast
        to some shape, it is int8 codes [B|1, H|1, *shape]. ALL and NONE are never wrong. SOME may stand for ALL or NONE
        only where the docstring of a mask says so.
        """
        bounds = [torch.as_tensor(x, device="cpu") for x in (q_lo, q_hi, k_lo, k_hi)]
        codes = self.rectangles(*torch.atleast_1d(*bounds))
        if any(x.ndim for x in bounds):
            return codes
        lowest, highest = int(codes.min()), int(codes.max())
        return Extent(lowest) if lowest == highest else Extent.SOME

    def cells(self, q: Tensor, k: Tensor, *, b: int | None = None, h: int | None = None) -> Tensor:
        """Return which queries `q` may attend to which keys `k`: bool [B|1, H|1, Q', K'] (for one `b`, `h`)."""
        b_index = cells.axis(self.batch, b, q.device)
        h_index = cells.axis(self.heads, h, q.device)
        allowed = self.allows(b_index[:, None, None, None], h_index[:, None, None], q[:, None], k[None, :])
        return torch.broadcast_to(allowed, (b_index.shape[0], h_index.shape[0], q.shape[0], k.shape[0]))

    def seen_keys(self, q_len: int, k_len: int) -> Tensor:
        """Find the keys to which at least one query may attend: bool [B|1, H|1, K] on the CPU.

        The answer is exact, though it evaluates few cells. The lengths are those to which the mask is aligned, and at
        least 1.
        """
        # Nearly every mask lets a key be seen by the query at its own position: one cheap look settles those keys.
        k = torch.arange(k_len, device=self.device or "cpu")
        own = (k - (k_len - q_len)).clamp(0, q_len - 1)
        b_index = cells.axis(self.batch, None, k.device)[:, None, None]
        h_index = cells.axis(self.heads, None, k.device)[:, None]
        shape = (len(b_index), len(h_index), k_len)
        used = torch.broadcast_to(self.allows(b_index, h_index, own, k), shape).cpu().clone()
        left = (~used).flatten(0, 1).any(0).nonzero()[:, 0]
        if len(left):
            zero = torch.zeros_like(left)
            codes = self.rectangles(zero, zero + q_len, left, left + 1)
            used[..., left] |= codes == Extent.ALL
            # In a combined mask SOME may stand for NONE or ALL: evaluating the column of the key decides.
            unsure = left[((codes == Extent.SOME) & ~used[..., left]).flatten(0, 1).any(0)]
            queries = torch.arange(q_len, device=k.device)
            chunk = max(1, 2**22 // (q_len * used.shape[0] * used.shape[1]))
            for keys in unsure.split(chunk):
                used[..., keys] |= self.cells(queries, keys.to(queries.device)).any(-2).cpu()
        return used

    def grid(self, q_len: int, k_len: int, block_q: int, block_k: int) -> Tensor:
        """Return the extent codes (NONE, SOME, ALL) of all blocks, int8 [B|1, H|1, ⌈Q/block_q⌉, ⌈K/block_k⌉].

        Last blocks may be smaller. The lengths are those to which the mask is aligned, and at least 1.
        """
        q_lo = torch.arange(0, q_len, block_q, dtype=torch.int32, device="cpu")[:, None]
        k_lo = torch.arange(0, k_len, block_k, dtype=torch.int32, device="cpu")[None, :]
        q_hi, k_hi = (q_lo + block_q).clamp(max=q_len), (k_lo + block_k).clamp(max=k_len)
        # In strips, so that the temporaries stay small compared with the grid.
        strip = max(1, 2**22 // max(1, k_lo.numel() * (self.batch or 1) * (self.heads or 1)))
        strips = range(0, len(q_lo), strip)
        return torch.cat(
            [self.rectangles(q_lo[i : i + strip], q_hi[i : i + strip], k_lo, k_hi) for i in strips], dim=-2
        )

    def nothing(self, *shape: int) -> Tensor:
        """Return the extent codes [B|1, H|1, *shape] of rectangles without cells: all 0."""
        return torch.zeros((self.batch or 1, self.heads or 1, *shape), dtype=torch.int8, device="cpu")
