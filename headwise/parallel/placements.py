"""Finds the part of a tensor that a process has, by the placements of a DTensor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headwise.errors import ArgumentError, ParallelError
from headwise.parallel.layout import Layout, chunks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_dtensor(x: object) -> TypeIs[DTensor]:
    """Return whether x is a DTensor, without importing torch.distributed.tensor."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(x, loaded.DTensor)


def locally(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `run(x)`; for a DTensor apply `run`, which must treat all heads equally, to each process's part."""
    if type(x) is Tensor or not is_dtensor(x):
        return run(x)
    from torch.distributed.tensor import DTensor

    given: dict[str, Any] = {"run_check": False, "shape": x.shape, "stride": x.stride()}
    return DTensor.from_local(run(x.to_local()), x.device_mesh, x.placements, **given)


def sharded(x: DTensor, layout: Layout, mesh: DeviceMesh, dim: int) -> Tensor:
    """Split a DTensor by rows along a mesh of one dimension. ArgumentError if the layout is not that of `chunks`."""
    from torch.distributed.tensor import Shard

    check_chunks("shard", layout, x.shape[dim])
    if x.device_mesh != mesh:
        raise ArgumentError(f"x: expected a DTensor on the mesh, {mesh}. Received: one on {x.device_mesh}")
    return x.redistribute(placements=[Shard(dim)])


def ranges(x: DTensor) -> list[slice]:
    """Return which part of x this process has: a range of indices for each of the first three dimensions."""
    from torch.distributed.tensor import Shard

    found = [slice(0, size) for size in x.shape[:3]]
    coordinate = x.device_mesh.get_coordinate()
    if coordinate is None:
        raise ParallelError("attention: expected a process of the DTensors' mesh. Received: one that is not part of it")
    for i, place in enumerate(x.placements):
        if isinstance(place, Shard):
            dim = place.dim % x.ndim
            begin, end = found[dim].start, found[dim].stop
            count = x.device_mesh.size(i)
            size = -(-(end - begin) // count)
            if dim < 2 and size * (count - 1) >= end - begin:
                raise ParallelError(
                    f"attention: expected an example and a head for each process. Received: {end - begin} of dimension "
                    f"{dim} for {count} processes. Replicate them along dimension {i} of the mesh"
                )
            begin = min(begin + coordinate[i] * size, end)
            found[dim] = slice(begin, min(begin + size, end))
    return found


def check_chunks(what: str, layout: Layout | None, length: int) -> None:
    """Raise ArgumentError for a layout other than that of a DTensor (`chunks`)."""
    if layout is None:
        return
    expected = chunks(length, layout.processes)
    if layout.length != length or (layout.owner_of_rows != expected.owner_of_rows).any():
        raise ArgumentError(
            f"{what}: expected the rows that a DTensor has: chunks of {-(-length // layout.processes)}, in order, of "
            f"{length}. Received: rows of {layout.length} that are dealt {layout.way!r}. Pass "
            "headwise.parallel.chunks(length, mesh), or tensors that are no DTensors"
        )
