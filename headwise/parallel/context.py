"""`context_parallel`: inside it `headwise.attention` gets the rows of one process and attends to the whole sequence."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.call import AttentionCall, Share
from headwise.errors import ArgumentError, ShapeError
from headwise.masks import Mask
from headwise.masks.cellwise import as_mask
from headwise.parallel import exchange
from headwise.parallel.agreement import DTYPES, agreed_rows, digest_mask, digest_options
from headwise.parallel.layout import Layout, deal
from headwise.parallel.placements import is_dtensor, sharded
from headwise.parallel.strategies import STRATEGIES, choose
from headwise.parallel.strategies.part import Part
from headwise.quantized import Int8
from headwise.scope import within

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Local = Callable[..., Any]  # `attention`, called for the rows of one process

_current: ContextVar[Processes | None] = ContextVar("headwise_parallel", default=None)
_share: ContextVar[Share | None] = ContextVar("headwise_share", default=None)
_reads_memory: ContextVar[bool | None] = ContextVar("headwise_parallel_memory", default=None)


@dataclasses.dataclass(frozen=True, eq=False)
class Processes:
    """The processes that share a sequence, as one of these processes sees them."""

    mesh: DeviceMesh
    layout: Layout | None
    strategy: str
    memory: Layout | Literal["whole"] | None = None  # the layout of the sequence that cross-attention reads

    @cached_property
    def group(self) -> Any:
        """The process group of torch.distributed."""
        return self.mesh.get_group()

    @cached_property
    def rank(self) -> int:
        """The number of this process in the group."""
        return dist.get_rank(self.group)

    @cached_property
    def count(self) -> int:
        """The number of processes, P."""
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
        edited: bool = False,
        **options: Any,
    ) -> Any:
        """Compute attention for the rows of this process, together with the other processes.

        Args:
            local: `attention`, which computes this process's part of the call.
            q, k, v: [B, H, S, D], [B, G, S, D] and [B, G, S, E] for the rows of this process; k and v may be this
                process's rows of the memory (the sequence that cross-attention reads), or the whole memory.
            mask: the mask of the whole sequence.
            followed: whether a record or an edit (`headwise.watch`, `headwise.edit`) gets this call: then a process
                computes all its rows in one call.
            edited: whether an edit may change the call.
            options: the options of `attention`, for the whole sequence.
        """
        if isinstance(k, Int8) or isinstance(v, Int8):
            raise ArgumentError(
                "context_parallel: expected keys and values that are tensors. Received: Int8, those of a cache. "
                "Compute steps on a cache outside of it"
            )
        whole = None if mask is None else as_mask("mask", mask)
        dtype = DTYPES.index(q.dtype) if q.dtype in DTYPES else len(DTYPES)
        told = (q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3], dtype)
        # Compare everything that decides the strategy: processes with different strategies would wait for one another.
        trains = [name for name, x in options.items() if isinstance(x, Tensor) and x.requires_grad]
        reads_memory = _reads_memory.get()
        decides = {**options, "": (followed, self.strategy, torch.is_grad_enabled(), trains, reads_memory)}
        digests = digest_mask(whole), digest_options(decides), _digest(self.layout), _digest(self.memory)
        rows, key_rows = agreed_rows((q.shape[2], k.shape[2]), (*told, *digests), self.group)
        if self._is_of_memory(rows, key_rows, reads_memory):
            layout = self._dealt("cross-attention")
            key_layout = None if self.memory == "whole" else self.memory
        else:
            layout = self.layout or deal(whole, sum(rows), self.count)
            key_layout = layout
        if edited and key_layout is not layout:
            raise ArgumentError(
                "context_parallel: expected self-attention, as edits count positions of one sequence. Received: "
                "cross-attention inside headwise.edit. Edit in one process"
            )
        _check_rows("rows", rows, layout)
        if key_layout is not None:
            _check_rows("rows of the memory", key_rows, key_layout)
        elif len(set(key_rows)) > 1:
            raise ShapeError(f"memory='whole': expected the same keys in every process. Received: {key_rows} keys")
        length = k.shape[2] if key_layout is None else key_layout.length
        whole = None if whole is None else whole.aligned(layout.length, length)
        part = Part(q, k, v, whole, layout, key_layout, self.rank, self.group, options)
        if key_layout is None:
            return part.over(local, k, v, torch.arange(length), "whole")
        return choose(part, self.strategy, followed=followed).attend(part, local)

    def _is_of_memory(self, rows: list[int], key_rows: list[int], told: bool | None) -> bool:
        """Return whether keys belong to the memory: as a module says (`told`), or for None if their number differs."""
        if self.memory is None or told is False:
            if told or rows != key_rows:
                raise ArgumentError(
                    "context_parallel: expected queries and keys of the same rows. Received: a cache, or keys of "
                    f"another sequence: {rows} rows and {key_rows} keys. For cross-attention pass memory=, the layout "
                    "of the sequence that is read, or memory='whole'; compute steps on a cache outside of it"
                )
            return False
        if told is None and rows == key_rows:
            raise ArgumentError(
                f"context_parallel: expected another number of keys than of rows, to know whether they are those of "
                f"the memory. Received: {rows} of both. Put the call into `with headwise.parallel.reading_memory():`, "
                "or for self-attention reading_memory(False)"
            )
        return True

    def _dealt(self, what: str) -> Layout:
        """Return the layout (which process holds which rows) that the user gave. ArgumentError if there is none.

        It is for operations without a mask, from which the layout could be computed; `what` names the operation.
        """
        if self.layout is None:
            raise ArgumentError(
                f"context_parallel: {what} must know which rows this process holds. Received: no layout. Make one with "
                "headwise.parallel.deal(mask, length, mesh), and pass context_parallel(mesh, layout)"
            )
        return self.layout

    def choose_layout(self, what: str, *, memory: bool) -> Layout | None:
        """Return the layout of the sequence, or with `memory` of the sequence that cross-attention reads.

        None = every process has all rows. ArgumentError if the layout is unknown; `what` names who needs it.
        """
        if not memory:
            return self._dealt(what)
        if self.memory is None:
            raise ArgumentError(
                "context_parallel: expected a module that reads its own sequence. Received: keys of another one. Pass "
                "memory=, the layout of that sequence, or memory='whole' if every process holds all of it"
            )
        return None if self.memory == "whole" else self.memory


def _digest(layout: Layout | str | None) -> int:
    if isinstance(layout, Layout):
        return int.from_bytes(layout.digest[:7], "little")
    return 0 if layout is None else 1


def _check_rows(what: str, rows: list[int], layout: Layout) -> None:
    expected = [len(each) for each in layout.positions]
    if rows != expected:
        raise ShapeError(
            f"context_parallel: expected the {what} that were dealt, {expected} of {layout.length}. Received: {rows}. "
            "Take each process's part with headwise.parallel.shard(x, mask, mesh), of the same mask; a model with "
            "several masks needs context_parallel(mesh, layout)"
        )


def current() -> Processes | None:
    """Return the processes of the `context_parallel` around this code; None outside of `context_parallel`."""
    return None if torch.compiler.is_compiling() else _current.get()


@contextlib.contextmanager
def context_parallel(
    mesh: DeviceMesh,
    layout: Layout | Mask | None = None,
    *,
    strategy: str = "auto",
    memory: Layout | Literal["whole"] | None = None,
    buffers: Sequence[Tensor] = (),
    buffer_seq_dims: Sequence[int] = (),
    no_restore_buffers: Iterable[Tensor] = (),
) -> Iterator[Processes]:
    """Inside this context `headwise.attention` and the modules of headwise compute one sequence in several processes.

    >>> mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (4,))
    >>> layout = headwise.parallel.deal(mask, length, mesh)
    >>> part = headwise.parallel.shard(x, layout, mesh)                  # this process's rows
    >>> with headwise.context_parallel(mesh, layout):
    ...     y = model(part, mask=mask)                                   # the mask of the whole sequence

    It can also cut tensors of the whole sequence in place and restore them, as PyTorch's context_parallel does:

    >>> with headwise.context_parallel(mesh, mask, buffers=[ids, labels], buffer_seq_dims=[1, 1]) as shared:
    ...     loss = cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    >>> whole = headwise.gather(logits, shared.layout, mesh)

    Only headwise's attention and modules see the other processes; PyTorch's functions see only the rows of this
    process. Compiled code runs uncompiled. Queries, keys and values are the rows of this process; masks, biases,
    lengths and ids of documents are those of the whole sequence. Operations without positions (linear layers, norms) do
    not change. Gradients of parameters are those of this process's rows: sum them over the processes, as
    DistributedDataParallel does.

    Args:
        mesh: a mesh of one dimension; for a larger mesh, the dimension that shares the sequence: mesh["cp"].
        layout: the rows of each process; None = the rows of `shard(x, mask, mesh)` for the mask of each call. With
            buffers it may also be the mask by which rows are dealt (None = every query sees every key).
        strategy: "auto", or "gather", "ring" or "heads": then a call that this strategy cannot compute raises an error.
        memory: the layout of the sequence that cross-attention reads, or "whole" = every process holds all of it, and
            nothing is sent. The gradients of a whole memory are those of this process's rows, as for parameters.
        buffers: tensors of the whole sequence, not parameters; inside the context they have only this process's rows.
        buffer_seq_dims: for each buffer, the dimension of the sequence.
        no_restore_buffers: the buffers that are not restored.

    Yields:
        A `Processes`. Pass its `layout` to `gather`.

    Raises:
        ShapeError: buffers of several lengths.
        ParallelError: processes that do not agree, or a process that is gone.
        ArgumentError: a mesh of several dimensions, or an unknown strategy.
    """
    check_mesh(mesh)
    if strategy not in ("auto", *STRATEGIES):
        raise ArgumentError(f"strategy: expected auto, {', '.join(STRATEGIES)}. Received: strategy={strategy!r}")
    layout = _layout_for(mesh, layout, buffers, buffer_seq_dims)
    if isinstance(memory, str) and memory != "whole":
        raise ArgumentError(f"memory: expected a layout, 'whole' or None. Received: memory={memory!r}")
    for name, given in (("layout", layout), ("memory", memory)):
        if isinstance(given, Layout) and given.processes != mesh.size():
            raise ArgumentError(
                f"{name}: expected one for {mesh.size()} processes. Received: a layout for {given.processes}"
            )
    here = Processes(mesh, layout, strategy, memory)
    with (
        torch.compiler.set_stance("force_eager"),  # compiled code would attend only to this process's rows
        _cut(buffers, buffer_seq_dims, no_restore_buffers, here),
        within(_current, here),
    ):
        yield here


def _layout_for(
    mesh: DeviceMesh, given: Layout | Mask | None, buffers: Sequence[Tensor], dims: Sequence[int]
) -> Layout | None:
    """Return the given layout, or rows dealt by the mask for the length of the buffers; None without both."""
    if len(buffers) != len(dims):
        raise ArgumentError(
            f"buffer_seq_dims: expected one for each buffer. Received: {len(dims)} for {len(buffers)} buffers"
        )
    lengths = [x.shape[dim] for x, dim in zip(buffers, dims, strict=True)]
    if len(set(lengths)) > 1:
        raise ShapeError(f"buffers: expected one length of the sequence. Received: lengths {lengths}")
    if isinstance(given, Layout) or (given is None and not lengths):
        return given
    if not lengths:
        raise ArgumentError(
            "layout: expected a layout, which knows the length of the sequence. Received: a mask without buffers. Pass "
            "headwise.parallel.deal(mask, length, mesh)"
        )
    return deal(given, lengths[0], mesh)


@contextlib.contextmanager
def alone(share: Share | None) -> Iterator[None]:
    """Return a context in which this process computes attention alone, as outside of `context_parallel`.

    `share` says which rows of a longer call the process computes, for records; None = the call is no part of another.
    """
    with within(_current, None), within(_share, share):
        yield


def mark_share(call: AttentionCall) -> AttentionCall:
    """Return the call; if it computes some rows of a longer call (see `alone`), mark it as such a share."""
    share = _share.get()
    return call if share is None else call.of(share)


@contextlib.contextmanager
def _cut(buffers: Sequence[Tensor], dims: Sequence[int], stay: Iterable[Tensor], here: Processes) -> Iterator[None]:
    """Return a context in which the buffers hold only this process's rows."""
    kept = {id(x) for x in stay}
    if kept - {id(x) for x in buffers}:
        raise ArgumentError("no_restore_buffers: expected some of buffers. Received: another tensor")
    if len({id(x) for x in buffers}) < len(buffers):
        raise ArgumentError("buffers: expected each tensor once. Received: one of them twice")
    if any(x.requires_grad for x in buffers):
        raise ArgumentError(
            "buffers: expected tensors that are not trained. Received: one that requires a gradient. Cut it with "
            "headwise.shard, through which gradients go"
        )
    layout = here.layout
    cut = [] if layout is None else [layout.shard(x, here.rank, dim) for x, dim in zip(buffers, dims, strict=True)]
    whole = [x.data for x in buffers]
    try:
        # Exchange the storage of the tensor instead of writing to it: views of the tensor stay whole, and restoring
        # copies nothing.
        for x, part in zip(buffers, cut, strict=True):
            x.data = part
        yield
    finally:
        for x, before in zip(buffers, whole, strict=True):
            if id(x) not in kept:
                x.data = before


def reading_memory(yes: bool = True) -> contextlib.AbstractContextManager[None]:
    """Return a context that says whether keys belong to the memory of `context_parallel(memory=)`.

    False: they belong to the same sequence as the queries. headwise's modules use this context themselves. A direct
    call of `headwise.attention` needs it if a process has as many rows of the memory as of the queries' sequence.
    """
    return within(_reads_memory, yes)


def treat_memory_as_own() -> contextlib.AbstractContextManager[None]:
    """Return a context in which modules take the layout of the memory for their own: for the memory's encoder."""
    here = current()
    if here is None:
        return contextlib.nullcontext()
    layout = here.choose_layout("an encoder", memory=True)
    return within(_current, None if layout is None else Processes(here.mesh, layout, here.strategy))


def shard(x: Tensor, by: Layout | Mask | None, mesh: DeviceMesh, *, dim: int = 1) -> Tensor:
    """Return this process's rows of a tensor of the whole sequence, which every process holds.

    Args:
        x: a tensor whose dimension `dim` is the sequence. For a DTensor the result is a DTensor too, placed as
            Shard(dim), and `by` must be `chunks`.
        by: a layout, or the mask by which rows are dealt; None = every query sees every key.
        mesh: a mesh of one dimension.
        dim: the dimension of the sequence.
    """
    check_mesh(mesh)
    layout = by if isinstance(by, Layout) else deal(by, x.shape[dim], mesh)
    if is_dtensor(x):
        return sharded(x, layout, mesh, dim)
    return layout.shard(x, dist.get_rank(mesh.get_group()), dim)


def gather(x: Tensor, by: Layout | Mask | None, mesh: DeviceMesh, *, dim: int = 1) -> Tensor:
    """Return the whole sequence, on every process, from the rows of each process. The result has no gradients.

    Args:
        x: this process's rows, along `dim`, or a DTensor.
        by, mesh, dim: as in `shard`.
    """
    check_mesh(mesh)
    if is_dtensor(x):
        whole: Tensor = x.full_tensor().detach()
        return whole
    group = mesh.get_group()
    if isinstance(by, Layout):
        layout = by
    else:
        (rows,) = agreed_rows((x.shape[dim],), (), group)
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


def whole(x: Tensor, dim: int = 1, *, memory: bool = False) -> Tensor:
    """Join all processes' parts of a tensor (such as which tokens are real); outside of the context return x."""
    here = current()
    layout = None if here is None else here.choose_layout("a module that is told real tokens", memory=memory)
    return x if here is None or layout is None else gather(x, layout, here.mesh, dim=dim)


def positions_here(count: int, device: torch.device, *, memory: bool = False) -> Tensor:
    """Return the positions of this process's `count` rows, [count]; 0, 1, 2 … outside of `context_parallel`."""
    here = current()
    layout = None if here is None else here.choose_layout("a module that counts positions", memory=memory)
    if here is None or layout is None:
        return torch.arange(count, device=device)
    positions = layout.positions[here.rank].to(device)
    if len(positions) != count:
        raise ShapeError(
            f"context_parallel: expected this process's {len(positions)} rows of {layout.length}. "
            f"Received: {count}. Take them with headwise.parallel.shard(x, layout, mesh)"
        )
    return positions


def rows_here(x: Tensor, dim: int = 1, *, memory: bool = False) -> Tensor:
    """Take this process's rows of a tensor of the whole sequence (or memory); outside of the context return x."""
    here = current()
    layout = None if here is None else here.choose_layout("a module that counts positions", memory=memory)
    return x if here is None or layout is None else layout.shard(x, here.rank, dim)


def gather_positions(positions: Tensor, *, memory: bool = False) -> Tensor:
    """Return the positions of all keys, [K] or [B, K], from the positions of this process's rows, [S] or [B, S].

    Outside of `context_parallel` return `positions`. With `memory`, all are positions in the sequence that
    cross-attention reads.
    """
    here = current()
    layout = None if here is None else here.choose_layout("a module that counts positions", memory=memory)
    if here is None or layout is None:
        return positions
    if positions.ndim == 1 and torch.equal(positions, layout.positions[here.rank].to(positions.device)):
        return torch.arange(layout.length, device=positions.device)
    return gather(positions, layout, here.mesh, dim=positions.ndim - 1)


def find_length(count: int, *, memory: bool = False) -> int:
    """Return the length of the sequence (or memory) of which this process has `count` rows; outside return `count`."""
    here = current()
    layout = None if here is None else here.choose_layout("a module that counts positions", memory=memory)
    return count if layout is None else layout.length


def check_mesh(mesh: DeviceMesh) -> None:
    """Raise ArgumentError for a mesh of several dimensions."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        hint = f'mesh["{names[-1]}"]' if names else 'init_device_mesh(..., mesh_dim_names=("dp", "cp"))["cp"]'
        raise ArgumentError(f"mesh: expected one dimension. Received: {mesh.ndim}. Pass that of the sequence: {hint}")
