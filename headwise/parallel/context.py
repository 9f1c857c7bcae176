"""`context_parallel`: inside, `headwise.attention` gets the rows of this process and attends to the whole sequence."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.call import AttentionCall, Share
from headwise.errors import ArgumentError, ShapeError
from headwise.masks import Mask
from headwise.masks.cellwise import as_mask
from headwise.parallel import exchange
from headwise.parallel.agreement import DTYPES, agreed_rows, digest_of, digest_of_options
from headwise.parallel.layout import Layout, deal
from headwise.parallel.strategies import STRATEGIES, choose
from headwise.parallel.strategies.part import Part
from headwise.quantized import Int8

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Local = Callable[..., Any]  # `attention`, of what one process computes

_current: ContextVar[Processes | None] = ContextVar("headwise_parallel", default=None)
_share: ContextVar[Share | None] = ContextVar("headwise_share", default=None)


@dataclasses.dataclass(frozen=True, eq=False)
class Processes:
    """Those that share a sequence, as one of them sees them."""

    mesh: DeviceMesh
    layout: Layout | None
    strategy: str

    @cached_property
    def group(self) -> Any:
        """The process group."""
        return self.mesh.get_group()

    @cached_property
    def rank(self) -> int:
        """The number of this process."""
        return dist.get_rank(self.group)

    @cached_property
    def count(self) -> int:
        """P"""
        return dist.get_world_size(self.group)

    def attend(
        self,
        local: Local,
        q: Tensor,
        k: Tensor | Int8,
        v: Tensor | Int8,
        *,
        mask: Mask | Tensor | None,
        followed: bool,
        **options: Any,
    ) -> Any:
        """What `local` returns for the rows of this process.

        Args:
            local: `attention`, which computes the part.
            q, k, v: [B, H, S, D], [B, G, S, D] and [B, G, S, E] of this process's rows.
            mask: of the whole sequence.
            followed: whether somebody wants the calls: then a process computes its rows in one call.
            options: those of `attention`, of the whole sequence.
        """
        if isinstance(k, Int8) or isinstance(v, Int8) or k.shape[2] != q.shape[2]:
            raise ArgumentError(
                "context_parallel: expected queries and keys of the same rows. Received: a cache, or keys of another "
                "sequence. Compute steps on a cache and cross-attention outside of it"
            )
        whole = None if mask is None else as_mask("mask", mask)
        dtype = DTYPES.index(q.dtype) if q.dtype in DTYPES else len(DTYPES)
        told = (q.shape[2], q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3], dtype)
        # Whatever a strategy is chosen by: processes that chose differently would wait for one another.
        trains = [name for name, x in options.items() if isinstance(x, Tensor) and x.requires_grad]
        decides = {**options, "": (followed, self.strategy, torch.is_grad_enabled(), trains)}
        layout_told = 0 if self.layout is None else int.from_bytes(self.layout.digest[:7], "little")
        rows = agreed_rows((*told, digest_of(whole), digest_of_options(decides), layout_told), self.group)
        length = sum(rows)
        layout = self.layout or deal(whole, length, self.count)
        if rows != [len(each) for each in layout.positions]:
            expected = [len(each) for each in layout.positions]
            raise ShapeError(
                f"context_parallel: expected the rows that were dealt, {expected} of {layout.length}. "
                f"Received: {rows}. "
                "Take each process's part with headwise.parallel.shard(x, mask, mesh), of the same mask; a model with "
                "several masks needs context_parallel(mesh, layout)"
            )
        whole = None if whole is None else whole.aligned(length, length)
        part = Part(q, k, v, whole, layout, self.rank, self.group, options)
        return choose(part, self.strategy, followed=followed).attend(part, local)


def current() -> Processes | None:
    """The processes that share a sequence here; None outside of `context_parallel`."""
    return None if torch.compiler.is_compiling() else _current.get()


@contextlib.contextmanager
def context_parallel(mesh: DeviceMesh, layout: Layout | None = None, *, strategy: str = "auto") -> Iterator[Processes]:
    """Inside, `headwise.attention` and the modules of headwise compute one sequence in several processes.

    >>> mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (4,))
    >>> layout = headwise.parallel.deal(mask, length, mesh)
    >>> part = headwise.parallel.shard(x, layout, mesh)                  # this process's rows
    >>> with headwise.context_parallel(mesh, layout):
    ...     y = model(part, mask=mask)                                   # the mask of the whole sequence

    Tensors are the rows of this process; masks, biases, lengths and ids of documents are those of the whole sequence.
    What has no positions (linear layers, norms) is not changed. Gradients of parameters are those of this process's
    rows: sum them over the processes, as DistributedDataParallel does.

    Args:
        mesh: of one dimension; of a larger one, the dimension that shares the sequence: mesh["cp"].
        layout: the rows of each process; None = those that `shard(x, mask, mesh)` gives for the mask of each call.
        strategy: "auto", or one of "gather", "ring" and "heads", which then raises rather than fall back.

    Raises:
        ParallelError: processes that do not agree, or one that is gone.
        ArgumentError: a mesh of several dimensions, or an unknown strategy.
    """
    check_mesh(mesh)
    if strategy not in ("auto", *STRATEGIES):
        raise ArgumentError(f"strategy: expected auto, {', '.join(STRATEGIES)}. Received: strategy={strategy!r}")
    if layout is not None and layout.processes != mesh.size():
        raise ArgumentError(
            f"layout: expected one for {mesh.size()} processes. Received: a layout for {layout.processes}"
        )
    token = _current.set(Processes(mesh, layout, strategy))
    try:
        yield _current.get()  # type: ignore[misc]
    finally:
        _current.reset(token)


@contextlib.contextmanager
def alone(share: Share | None) -> Iterator[None]:
    """Inside, a call is one process's own: its share of that of the whole sequence, where records need to know."""
    before, shared = _current.set(None), _share.set(share)
    try:
        yield
    finally:
        _current.reset(before)
        _share.reset(shared)


def as_share(call: AttentionCall) -> AttentionCall:
    """The call, with the share that it is of a longer sequence's, if it is one."""
    share = _share.get()
    return call if share is None else call.of(share)


def shard(x: Tensor, by: Layout | Mask | None, mesh: DeviceMesh, *, dim: int = 1) -> Tensor:
    """This process's rows of a tensor of the whole sequence, which every process holds.

    Args:
        x: its dimension `dim` is the sequence.
        by: a layout, or the mask by which rows are dealt; None = every query sees every key.
        mesh: of one dimension.
        dim: the dimension of the sequence.
    """
    check_mesh(mesh)
    layout = by if isinstance(by, Layout) else deal(by, x.shape[dim], mesh)
    return layout.shard(x, dist.get_rank(mesh.get_group()), dim)


def gather(x: Tensor, by: Layout | Mask | None, mesh: DeviceMesh, *, dim: int = 1) -> Tensor:
    """The whole sequence, on every process, from each process's rows. No gradients.

    Args:
        x: this process's rows, along `dim`.
        by, mesh, dim: as in `shard`.
    """
    check_mesh(mesh)
    group = mesh.get_group()
    if isinstance(by, Layout):
        layout = by
    else:
        rows = agreed_rows((x.shape[dim], *[0] * 9), group)
        layout = deal(by, sum(rows), mesh)
    counts = [len(each) for each in layout.positions]
    if x.shape[dim] != counts[dist.get_rank(group)]:
        raise ShapeError(
            f"x: expected {counts[dist.get_rank(group)]} rows, those of this process. Received: x={list(x.shape)}"
        )
    rows_first = x.detach().movedim(dim, 0)
    found = exchange.all_gather(rows_first.reshape(len(rows_first), -1), counts, group)
    joined = layout.joined(found, 0)
    return joined.unflatten(1, rows_first.shape[1:]).movedim(0, dim) if x.ndim > 1 else joined[:, 0]


def whole(x: Tensor, dim: int = 1) -> Tensor:
    """The whole sequence of what each process holds of it, such as which tokens are real; x outside."""
    here = current()
    return x if here is None else gather(x, _layout(here, "real tokens"), here.mesh, dim=dim)


def positions_here(count: int, device: torch.device) -> Tensor:
    """The positions of this process's `count` rows, [count]; outside of `context_parallel` 0, 1, 2 …"""
    here = current()
    if here is None:
        return torch.arange(count, device=device)
    positions = _layout(here, "positions").positions[here.rank].to(device)
    if len(positions) != count:
        raise ShapeError(
            f"context_parallel: expected this process's {len(positions)} rows of {_layout(here, '').length}. "
            f"Received: {count}. Take them with headwise.parallel.shard(x, layout, mesh)"
        )
    return positions


def rows_here(x: Tensor, dim: int = 1) -> Tensor:
    """This process's rows of something of the whole sequence; x outside."""
    here = current()
    return x if here is None else _layout(here, "positions").shard(x, here.rank, dim)


def keys_of(positions: Tensor) -> Tensor:
    """The positions, [S] or [B, S], of the keys that rows at `positions` may see: of all; outside the same."""
    here = current()
    if here is None:
        return positions
    layout = _layout(here, "positions")
    if positions.ndim == 1 and torch.equal(positions, layout.positions[here.rank].to(positions.device)):
        return torch.arange(layout.length, device=positions.device)
    return gather(positions, layout, here.mesh, dim=positions.ndim - 1)


def length_of(count: int) -> int:
    """Positions of the whole sequence of which this process has `count` rows; outside the same."""
    here = current()
    return count if here is None else _layout(here, "positions").length


def _layout(here: Processes, what: str) -> Layout:
    if here.layout is None:
        raise ArgumentError(
            f"context_parallel: a module that needs {what} must know which rows this process holds. Received: no "
            "layout. Make one with headwise.parallel.deal(mask, length, mesh), and pass context_parallel(mesh, layout)"
        )
    return here.layout


def check_mesh(mesh: DeviceMesh) -> None:
    """ArgumentError for a mesh of several dimensions."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        hint = f'mesh["{names[-1]}"]' if names else 'init_device_mesh(..., mesh_dim_names=("dp", "cp"))["cp"]'
        raise ArgumentError(f"mesh: expected one dimension. Received: {mesh.ndim}. Pass that of the sequence: {hint}")
