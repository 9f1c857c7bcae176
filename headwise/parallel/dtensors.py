"""DTensors as queries, keys and values: each process computes its part, and the result is a DTensor too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.call import fit_mask
from headwise.errors import ArgumentError, DtypeError, ParallelError
from headwise.masks.share import cut_share
from headwise.options import OPTIONS, check_options
from headwise.parallel import context
from headwise.parallel.context import Local, Processes
from headwise.parallel.layout import chunks
from headwise.parallel.placements import check_chunks, is_dtensor, ranges
from headwise.shapes import check_qkv

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


def attend(
    attention: Local,
    alone: Local,
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any,
    followed: bool,
    edited: bool,
    **options: Any,
) -> Any:
    """Compute `attention` for DTensors; the result is a DTensor with the placements of q.

    Args:
        attention: the function that computes this process's part if the sequence is not split.
        alone: the same function, called as outside of `context_parallel`, if the sequence is split.
        q, k, v: DTensors on one mesh. Along each of its dimensions q is split by batch, heads or sequence, or not at
            all; k and v are split like q, or not at all.
        mask, options: the mask and options of the whole call; their tensors are the same in every process, or DTensors.
            A record has only this process's part.
        followed: whether a record or an edit (`headwise.watch`, `headwise.edit`) gets this call.
        edited: whether an edit may change the call.

    Raises:
        ParallelError: placements that cannot be computed.
        DtypeError: DTensors mixed with other tensors, or DTensors of several meshes.
    """
    from torch.distributed.tensor import DTensor

    if not all(is_dtensor(x) for x in (q, k, v)):
        told = ", ".join(f"{name}={type(x).__name__}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise DtypeError(
            f"expected q, k and v that are all DTensors, or none. Received: {told}. Distribute the others, or pass "
            "x.to_local()"
        )
    mesh = q.device_mesh
    if k.device_mesh != mesh or v.device_mesh != mesh:
        raise DtypeError(f"expected q, k and v on one mesh. Received: q={mesh}, k={k.device_mesh}, v={v.device_mesh}")
    check_qkv(q, k, v)
    check_options({name: x for name, x in options.items() if name in OPTIONS}, q, k.shape[2])
    split = [_split(i, q, k, v) for i in range(mesh.ndim)]
    if split.count(2) > 1:
        raise ParallelError(
            f"attention: expected one dimension of the mesh to split the sequence. Received: q={q.placements}. "
            "Flatten these dimensions into one"
        )
    if edited and 1 in split:
        raise ParallelError(
            f"edit: expected every process to have all heads, which an edit counts. Received: q={q.placements}. Edit a "
            "model whose heads are not split"
        )
    if options.get("dropout") and any(each is None and mesh.size(i) > 1 for i, each in enumerate(split)):
        raise ParallelError(
            "dropout: expected q to be split along each dimension of the mesh: processes that have the same would drop "
            f"other weights. Received: q={q.placements}, dropout={options['dropout']}"
        )
    of_q, of_k = ranges(q), ranges(k)
    q_here, (k_here, v_here) = q.to_local(), (_take_part(x, q) for x in (k, v))
    k_here, v_here = (_read_heads(x, of_q[1], of_k[1], q.shape[1] // k.shape[1]) for x in (k_here, v_here))
    given = {name: _share(name, x, split, mesh, of_q) for name, x in options.items()}
    if mask is not None:
        whole = fit_mask(mask.full_tensor() if is_dtensor(mask) else mask, q, q.shape[1], q.shape[2], k.shape[2])
        mask = cut_share(whole, of_q[0], of_q[1])
    if 2 in split:
        here = _processes(q, k, split.index(2))
        with context.reading_memory(here.memory is not None):
            found = here.attend(alone, q_here, k_here, v_here, mask=mask, followed=followed, edited=edited, **given)
    else:
        _check_around(mesh)
        found = attention(q_here, k_here, v_here, mask=mask, **given)
    out, *rest = found if isinstance(found, tuple) else (found,)
    shape = torch.Size((*q.shape[:3], v.shape[3]))
    stride = torch.empty(shape, device="meta").stride()
    placed = DTensor.from_local(out, mesh, q.placements, run_check=False, shape=shape, stride=stride)
    return (placed, *rest) if rest else placed


def _check_around(mesh: DeviceMesh) -> None:
    """Raise ArgumentError inside a `context_parallel` that splits the sequence along a dimension of this mesh."""
    around = context.current()
    if around is not None and any(mesh.get_group(i) == around.group for i in range(mesh.ndim)):
        raise ArgumentError(
            "context_parallel: expected q, k and v as Shard(2) along its mesh. Received: DTensors that have the whole "
            "sequence in every process. Call x.redistribute(placements=[Shard(2)]), or compute them outside of it"
        )


def _split(i: int, q: DTensor, k: DTensor, v: DTensor) -> int | None:
    """Return which dimension of q (k and v alike, or not at all) is split along the mesh's dimension i, or None."""
    from torch.distributed.tensor import Replicate, Shard

    places = {name: x.placements[i] for name, x in (("q", q), ("k", k), ("v", v))}
    told = ", ".join(f"{name}={place}" for name, place in places.items())
    # (A DTensor placed by a subclass of Shard has its rows in another order.)
    dims = {name: place.dim % 4 for name, place in places.items() if isinstance(place, Shard) and type(place) is Shard}
    split = dims.get("q")
    if split == 3 or any(name not in dims and type(place) is not Replicate for name, place in places.items()):
        raise ParallelError(
            f"attention: expected q as Shard(0) (batch), Shard(1) (heads), Shard(2) (sequence) or Replicate(). "
            f"Received along dimension {i} of the mesh: {told}. Call x.redistribute(placements=...) before"
        )
    for name in ("k", "v"):
        if dims.get(name, split) != split:
            raise ParallelError(
                f"attention: expected {name} to be split as q is, or Replicate(). Received along dimension {i} of the "
                f"mesh: {told}. Call {name}.redistribute(placements=...) before"
            )
    if places["k"] != places["v"]:
        raise ParallelError(
            f"attention: expected k and v placed alike. Received along dimension {i} of the mesh: {told}"
        )
    return split


def _take_part(x: DTensor, q: DTensor) -> Tensor:
    """Return this process's part of keys or values.

    Along a dimension of the mesh that splits only q, each process computes a summand of the keys' gradient.
    """
    from torch.distributed.tensor import Partial

    placements = [
        Partial() if mine.is_replicate() and not of_q.is_replicate() else mine
        for mine, of_q in zip(x.placements, q.placements, strict=True)
    ]
    # (A redistribution to the same placements: its backward sums the gradients of the processes.)
    x = x.redistribute(placements=x.placements)
    here: Tensor = x.to_local(grad_placements=placements)
    examples = ranges(q)[0]
    return here if len(here) == examples.stop - examples.start else here[examples]


def _read_heads(x: Tensor, heads: slice, held: slice, size: int) -> Tensor:
    """Return the key heads that the query heads `heads` read (`size` heads each); x has the key heads `held`."""
    if (held.start * size, held.stop * size) == (heads.start, heads.stop):
        return x
    first, last = heads.start // size, -(-heads.stop // size)
    if first < held.start or last > held.stop:
        raise ParallelError(
            f"attention: expected the key heads that heads {heads.start} to {heads.stop} read, {first} to {last}. "
            f"Received: {held.start} to {held.stop}, as k is placed. Replicate k and v along this dimension of the mesh"
        )
    if (first * size, last * size) == (heads.start, heads.stop):
        return x[:, first - held.start : last - held.start]
    return x[:, [head // size - held.start for head in range(heads.start, heads.stop)]]


def _share(name: str, x: Any, split: list[int | None], mesh: DeviceMesh, of_q: list[slice]) -> Any:
    """Return this process's part of an option, for its examples and heads. The option's rows are cut later."""
    if not isinstance(x, Tensor):
        return x
    # Which dimensions of the option are the batch and the heads; None = the option is the same for all of them.
    at = [dim - (4 - x.ndim) for dim in (0, 1)] if name == "bias" else [-1, 0]
    places = [dim if 0 <= dim < x.ndim and x.shape[dim] > 1 else None for dim in at]
    if not is_dtensor(x):
        for place, part in zip(places, of_q, strict=False):
            x = x if place is None else x.narrow(place, part.start, part.stop - part.start)
        return x

    from torch.distributed.tensor import Partial, Replicate, Shard

    if x.device_mesh != mesh:
        raise DtypeError(f"{name}: expected the mesh of q, {mesh}. Received: {name}={x.device_mesh}")
    wanted: list[Any] = []
    gradients: list[Any] = []
    for dim in split:
        place = places[dim] if dim in (0, 1) else None
        wanted.append(Replicate() if place is None else Shard(place))
        gradients.append(Partial() if place is None and dim is not None else wanted[-1])
    return x.redistribute(placements=wanted).to_local(grad_placements=gradients)


def _processes(q: DTensor, k: DTensor, i: int) -> Processes:
    """Return the processes along dimension i of the mesh, each of which has one chunk of the sequence."""
    names = q.device_mesh.mesh_dim_names
    if q.device_mesh.ndim > 1 and names is None:
        raise ArgumentError("mesh: expected names for its dimensions. Received: none. Pass mesh_dim_names=")
    mesh = q.device_mesh if q.device_mesh.ndim == 1 or names is None else q.device_mesh[names[i]]
    layout = chunks(q.shape[2], mesh)
    around, strategy = context.current(), "auto"
    if around is not None:
        if around.mesh != mesh:
            raise ArgumentError(
                f"context_parallel: expected the mesh along which q has its rows, {mesh}. Received: {around.mesh}"
            )
        strategy = around.strategy
        check_chunks("context_parallel", around.layout, q.shape[2])
    if k.placements[i].is_replicate():
        return Processes(mesh, layout, strategy, "whole")
    return Processes(mesh, layout, strategy, None if k.shape[2] == q.shape[2] else chunks(k.shape[2], mesh))
