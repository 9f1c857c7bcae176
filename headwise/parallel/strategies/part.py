"""`Part`: one process's part of a call that processes share. `Sizes`: the sizes of the call, which decide its cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headwise.call import Scores, Share
from headwise.masks import Mask
from headwise.masks.picked import picked
from headwise.parallel.layout import Layout, make_grid
from headwise.parallel.routes import Routes, make_routes

GLOO, NCCL = 1.5e9, 5e10  # nominal bytes per second between two processes


class Cost(NamedTuple):
    """The estimated cost of the slowest process."""

    sent: int  # the largest number of bytes that a process receives
    time: float  # estimated seconds


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a call that processes share: what each process computes and receives. They decide the cost.

    Args:
        cells: [P], the allowed pairs, as a mean over examples and heads.
        traffic: [P, P], the number of keys that a process (row) gets from each process (column), including itself.
        rows: [P], the number of rows of each process.
        key_rows: [P], the number of keys that each process holds.
        batch, heads, key_heads, dim, value_dim: B, H, G, D, E.
        itemsize: the bytes of a number.
        bandwidth: bytes per second.
        flops: operations per second.
    """

    cells: NDArray[np.float64]
    traffic: NDArray[np.int64]
    rows: NDArray[np.int64]
    key_rows: NDArray[np.int64]
    batch: int
    heads: int
    key_heads: int
    dim: int
    value_dim: int
    itemsize: int
    bandwidth: float = GLOO
    flops: float = 1e11

    @classmethod
    def of(cls, mask: Mask | None, layout: Layout, key_layout: Layout, *sizes: int, **speeds: Any) -> Sizes:
        """Compute the sizes of a call from its mask, which is aligned to the whole sequences, and the layouts."""
        grid, count = make_grid(mask, layout.edges, key_layout.edges), layout.processes
        cells, needed = grid.per_process(layout.owner, key_layout.owner, count)
        rows = np.bincount(layout.owner, grid.rows, count).astype(np.int64)
        key_rows = np.bincount(key_layout.owner, grid.keys, count).astype(np.int64)
        owners = key_layout.owner[:, None] == np.arange(count)
        return cls(cells, (needed * grid.keys) @ owners, rows, key_rows, *sizes, **speeds)

    @property
    def keys(self) -> NDArray[np.int64]:
        """The number of keys that each process gets from other processes, [P]."""
        keys: NDArray[np.int64] = self.traffic.sum(1) - self.traffic.diagonal()
        return keys

    @property
    def idle(self) -> NDArray[np.float64]:
        """The fraction of the time in which each process waits for the process with the most cells, [P]."""
        most = self.cells.max()
        idle: NDArray[np.float64] = 1 - self.cells / most if most else np.zeros_like(self.cells)
        return idle

    @property
    def computing(self) -> float:
        """The estimated seconds for the matrix products in the process with the most cells."""
        return float(2 * self.batch * self.heads * self.cells.max() * (self.dim + self.value_dim) / self.flops)

    @property
    def key_bytes(self) -> int:
        """The bytes of the key and the value of one position."""
        return self.batch * self.key_heads * (self.dim + self.value_dim) * self.itemsize


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """One process's part of a call: its rows q [B, H, S, D], k [B, G, T, D], v [B, G, T, E], and the whole mask."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None  # aligned to [N, K], [N, N] in self-attention
    layout: Layout
    key_layout: Layout | None  # the layout of keys and values; None = every process has all of them
    rank: int
    group: Any
    options: dict[str, Any]  # the options of `attention`, for the whole sequence

    @property
    def rows(self) -> Tensor:
        """The positions of this process's rows, [S]."""
        return self.layout.positions[self.rank]

    @cached_property
    def routes(self) -> Routes:
        """Which keys this process sends to which process, and which it receives."""
        given = self.layout, self.dealt_keys, self.rank
        if self.mask is None:
            return make_routes(None, *given)
        return self.mask.remember(("routes", *self._digests, self.rank), lambda mask: make_routes(mask, *given))

    @property
    def dealt_keys(self) -> Layout:
        """The layout of the keys (which process holds which), for a call whose keys are dealt to the processes."""
        assert self.key_layout is not None
        return self.key_layout

    @property
    def key_length(self) -> int:
        """K, the number of keys of the whole sequence that the queries read."""
        return self.k.shape[2] if self.key_layout is None else self.key_layout.length

    @property
    def _digests(self) -> tuple[bytes, bytes]:
        return self.layout.digest, b"" if self.key_layout is None else self.key_layout.digest

    def masked(self, keys: Tensor, purpose: object) -> Mask | None:
        """Return the mask between this process's rows and the keys at the positions `keys`.

        The mask object remembers the result under `purpose`, which must be different for different keys.
        """
        if self.mask is None:
            return None
        device = self.q.device

        def make(mask: Mask) -> Mask:
            made = picked(mask, self.rows, keys)
            # Positions are on the CPU, and a mask without its own tensors fits every device.
            return made.to(device) if mask.device is None else made

        return self.mask.remember(("picked", *self._digests, self.rank, purpose, str(device)), make)

    def over(self, local: Callable[..., Any], k: Tensor, v: Tensor, keys: Tensor, purpose: object) -> Any:
        """Call `local` (attention in one process) for this process's rows and the keys at the positions `keys`."""
        options = {**self.options, "bias": self.compute_bias(keys), "slopes": None}
        own = self.key_layout is self.layout  # only in self-attention is the call a part of a square matrix
        share = Share(self.rows, keys, self.layout.length, self.mask) if own else None
        return local(self.q, k, v, mask=self.masked(keys, purpose), share=share, **options)

    def compute_bias(self, keys: Tensor) -> Tensor | None:
        """Add the options `bias` and `slopes` to one bias between this process's rows and the keys at `keys`.

        Returns [B|1, H|1, S|1, K|1], or None without these options.
        """
        bias, slopes = self.options.get("bias"), self.options.get("slopes")
        if bias is not None:
            bias = bias[(None,) * (4 - bias.ndim)]
            for dim, places, length in ((2, self.rows, self.layout.length), (3, keys, self.key_length)):
                if bias.shape[dim] == length > 1:
                    bias = bias.index_select(dim, places.to(bias.device))
        if slopes is not None:
            rows, cols = (x.to(slopes.device) for x in (self.rows + self.key_length - self.layout.length, keys))
            bias = Scores(self.q, self.k, bias=bias, slopes=slopes, places=(rows, cols)).added()
        return bias

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes of the call, from which costs are estimated."""
        shape = (*self.q.shape[:2], self.k.shape[1], self.q.shape[3], self.v.shape[3], self.q.element_size())
        bandwidth = NCCL if self.q.is_cuda else GLOO
        return Sizes.of(self.mask, self.layout, self.dealt_keys, *shape, bandwidth=bandwidth)


class Strategy(Protocol):
    """The interface of a strategy by which processes share a call: each strategy is a module with these functions."""

    def refuse(self, part: Part, *, followed: bool) -> str | None:
        """Return why the strategy cannot run a call; None if it can."""

    def cost(self, sizes: Sizes) -> Cost:
        """Estimate the cost of the forward pass."""

    def attend(self, part: Part, local: Callable[..., Any]) -> Any:
        """Compute the output for this process's rows by `local`, the attention of one process."""
