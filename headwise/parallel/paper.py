"""Estimates the cost of a call that processes share: cells (allowed pairs), keys, bytes and idle time of each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from headwise.call import AttentionCall
from headwise.errors import ArgumentError
from headwise.language import said
from headwise.masks import Mask
from headwise.parallel.layout import Layout, deal
from headwise.parallel.strategies import STRATEGIES
from headwise.parallel.strategies.part import GLOO, NCCL, Cost, Sizes
from headwise.tables import Printed, padded

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

SHOWN = 16  # processes in the table


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ParallelPlan(Printed):
    """A plan to share a call between processes. `print` it, or read `layout`, `sizes`, `strategy` and `costs`."""

    layout: Layout
    sizes: Sizes
    strategy: str  # the cheapest strategy
    costs: dict[str, Cost]  # the cost of the forward pass with each strategy

    @property
    def idle(self) -> float:
        """The fraction of time, averaged over processes, in which they wait for the process with the most cells."""
        return float(self.sizes.idle.mean())

    @property
    def bytes(self) -> int:
        """The largest number of bytes that a process receives in the forward pass, with the chosen strategy."""
        return self.costs[self.strategy].sent

    def __str__(self) -> str:
        sizes = self.sizes
        lines = [
            f"{padded(said('sequence'), 12)}{self.layout.length:,} rows, {self.layout.processes} processes, "
            f"dealt {self.layout.way!r}",
            f"{padded(said('idle'), 12)}{self.idle:.1%} of the time, {sizes.idle.max():.1%} of one process",
        ]
        for name, each in self.costs.items():
            taken = " (taken)" if name == self.strategy else ""
            told = "refuses" if each.time == float("inf") else f"{each.sent:,} bytes to a process, {each.time:.3g} s"
            lines.append(f"{padded(name, 12)}{told}{taken}")
        lines.append(f"{'process':>8}{'rows':>14}{'cells':>20}{'keys from others':>20}{'bytes':>16}{'idle':>8}")
        for p in range(min(self.layout.processes, SHOWN)):
            keys = int(sizes.keys[p])
            lines.append(
                f"{p:>8}{int(sizes.rows[p]):>14,}{int(sizes.cells[p]):>20,}{keys:>20,}{keys * sizes.key_bytes:>16,}"
                f"{sizes.idle[p]:>8.1%}"
            )
        if self.layout.processes > SHOWN:
            lines.append(f"     ... and {self.layout.processes - SHOWN} more")
        return "\n".join(lines)


def planned(call: AttentionCall, mesh: DeviceMesh) -> ParallelPlan:
    """Plan how the processes of a mesh would share this call. ArgumentError if keys and queries are two sequences."""
    batch, heads, q_len, k_len = call.shape
    if q_len != k_len:
        raise ArgumentError(f"mesh: expected queries and keys of one sequence. Received: Q={q_len}, K={k_len}")
    sizes: dict[str, Any] = {"batch": batch, "heads": heads, "key_heads": call.k.shape[1], "dim": call.q.shape[3]}
    bandwidth = NCCL if call.q.is_cuda else GLOO
    return on_paper(call.mask, q_len, mesh.size(), **sizes, dtype=call.q.dtype, bandwidth=bandwidth)


def on_paper(
    mask: Mask | None,
    length: int,
    processes: int,
    *,
    batch: int = 1,
    heads: int = 1,
    key_heads: int | None = None,
    dim: int = 64,
    dtype: torch.dtype = torch.float32,
    layout: Layout | None = None,
    bandwidth: float = GLOO,
    flops: float = 1e11,
) -> ParallelPlan:
    """Plan how processes would share a call that is described by its sizes; no process needs to exist, nothing is run.

    Args:
        mask: the mask of the whole sequence.
        length: N, the length of the whole sequence.
        processes: P, the number of processes.
        batch, heads, key_heads, dim: B, H, G (None = H), and D = E.
        dtype: the dtype of q, k and v.
        layout: the layout of the rows; None = dealt by the mask.
        bandwidth: the bytes per second that a process receives, to compare strategies.
        flops: operations per second of a process.
    """
    if layout is not None and (layout.processes, layout.length) != (processes, length):
        raise ArgumentError(
            f"layout: expected one of {length} rows and {processes} processes. Received: {layout.length} rows and "
            f"{layout.processes} processes"
        )
    layout = layout or deal(mask, length, processes)
    aligned = None if mask is None else mask.aligned(length, length)
    sizes = Sizes.of(
        aligned,
        layout,
        layout,
        batch,
        heads,
        key_heads or heads,
        dim,
        dim,
        dtype.itemsize,
        bandwidth=bandwidth,
        flops=flops,
    )
    costs = {name: each.cost(sizes) for name, each in STRATEGIES.items()}
    return ParallelPlan(layout, sizes, min(costs, key=lambda name: costs[name].time), costs)
