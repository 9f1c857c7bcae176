"""`Part`: what one process has of a call that several share; `Sizes`: what its cost follows from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.masks import Mask
from headwise.masks.picked import picked
from headwise.parallel.layout import Layout, grid_of
from headwise.parallel.routes import Routes, routes_of

GLOO, NCCL = 1.5e9, 5e10  # nominal bytes a second between two processes


class Cost(NamedTuple):
    """Of the slowest process."""

    sent: int  # bytes that a process receives, at most
    time: float  # seconds, nominal


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A call on paper: what each process computes and gets.

    Args:
        cells: [P], allowed pairs, mean over examples and heads.
        traffic: [P, P], keys that the one gets from the other, its own included.
        rows: [P].
        batch, heads, key_heads, dim, value_dim: B, H, G, D, E.
        itemsize: bytes of a number.
        bandwidth: bytes a second.
        flops: a second.
    """

    cells: NDArray[np.float64]
    traffic: NDArray[np.int64]
    rows: NDArray[np.int64]
    batch: int
    heads: int
    key_heads: int
    dim: int
    value_dim: int
    itemsize: int
    bandwidth: float = GLOO
    flops: float = 1e11

    @classmethod
    def of(cls, mask: Mask | None, layout: Layout, *sizes: int, **speeds: Any) -> Sizes:
        """Those of a mask that is aligned to the whole sequence."""
        grid = grid_of(mask, layout.edges)
        cells, needed = grid.per_process(layout.owner, layout.processes)
        rows = np.bincount(layout.owner, grid.rows, layout.processes).astype(np.int64)
        owners = layout.owner[:, None] == np.arange(layout.processes)
        return cls(cells, (needed * grid.rows) @ owners, rows, *sizes, **speeds)

    @property
    def keys(self) -> NDArray[np.int64]:
        """[P]: keys from other processes."""
        keys: NDArray[np.int64] = self.traffic.sum(1) - self.traffic.diagonal()
        return keys

    @property
    def idle(self) -> NDArray[np.float64]:
        """[P]: the share of the time in which a process waits for the one with the most cells."""
        most = self.cells.max()
        idle: NDArray[np.float64] = 1 - self.cells / most if most else np.zeros_like(self.cells)
        return idle

    @property
    def computing(self) -> float:
        """Seconds of the products of the process with the most cells."""
        return float(2 * self.batch * self.heads * self.cells.max() * (self.dim + self.value_dim) / self.flops)

    @property
    def key_bytes(self) -> int:
        """Of one position's key and value."""
        return self.batch * self.key_heads * (self.dim + self.value_dim) * self.itemsize


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """One process's rows: q [B, H, S, D], k [B, G, S, D], v [B, G, S, E], and the mask of the whole sequence."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None  # aligned to [N, N]
    layout: Layout
    rank: int
    group: Any
    options: dict[str, Any]  # those of `attention`, of the whole sequence

    @property
    def rows(self) -> Tensor:
        """[S]: the positions of this process's rows."""
        return self.layout.positions[self.rank]

    @cached_property
    def routes(self) -> Routes:
        """What travels."""
        given = self.mask, self.layout, self.rank
        if self.mask is None:
            return routes_of(*given)
        return self.mask.remember(("routes", self.layout.digest, self.rank), lambda: routes_of(*given))

    def masked(self, keys: Tensor, purpose: object) -> Mask | None:
        """The mask of this process's rows over some keys; remembered for this purpose."""
        if self.mask is None:
            return None
        mask = self.mask
        return mask.remember(("picked", self.layout.digest, self.rank, purpose), lambda: picked(mask, self.rows, keys))

    def bias_of(self, keys: Tensor) -> Tensor | None:
        """Bias and slopes over some keys, as one bias [B|1, H|1, S|1, K|1]."""
        bias, slopes = self.options.get("bias"), self.options.get("slopes")
        if bias is not None:
            bias = bias[(None,) * (4 - bias.ndim)]
            for dim, places in ((2, self.rows), (3, keys)):
                if bias.shape[dim] == self.layout.length > 1:
                    bias = bias.index_select(dim, places.to(bias.device))
        if slopes is not None:
            rows, keys = (x.to(slopes.device) for x in (self.rows, keys))
            far = (keys - rows[:, None]).abs().to(torch.promote_types(slopes.dtype, torch.float32))
            more = -slopes[:, None, None] * far
            bias = more[None] if bias is None else bias + more
        return bias

    @cached_property
    def sizes(self) -> Sizes:
        """What the costs follow from."""
        shape = (*self.q.shape[:2], self.k.shape[1], self.q.shape[3], self.v.shape[3], self.q.element_size())
        return Sizes.of(self.mask, self.layout, *shape, bandwidth=NCCL if self.q.is_cuda else GLOO)


class Strategy(Protocol):
    """A module with these functions."""

    def refuse(self, part: Part, *, followed: bool) -> str | None:
        """Why it cannot run a call; None if it can."""

    def cost(self, sizes: Sizes) -> Cost:
        """Of the forward pass."""

    def attend(self, part: Part, local: Callable[..., Any]) -> Any:
        """What `local`, `attention` of one process, returns for this process's rows."""
