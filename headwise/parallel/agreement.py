"""Whether all processes mean the same call: told before anything travels, so that none waits for what never comes."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.errors import ParallelError
from headwise.masks import Mask
from headwise.parallel.exchange import talking

NAMES = ("B", "H", "G", "D", "E", "dtype", "mask", "options", "layout", "memory")  # what must be the same
DIGESTS = ("mask", "options", "layout", "memory")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def digest_of(mask: Mask | None) -> int:
    """A number that is the same for equal masks, on every machine. A function is told by its name alone."""
    if mask is None:
        return 0
    return mask.remember(("digest",), lambda: _number(_written(mask)))


def digest_of_options(options: dict[str, Any]) -> int:
    """The same of numbers, and of the shapes of tensors; a bias may have each process's own rows."""
    told = {name: _shape(name, x) if isinstance(x, Tensor) else x for name, x in sorted(options.items())}
    return _number(repr(told).encode())


def _shape(name: str, x: Tensor) -> tuple[object, ...]:
    rows = x.ndim - 2 if name == "bias" else None
    return tuple("rows" if dim == rows and size > 1 else size for dim, size in enumerate(x.shape))


def _number(written: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(written, digest_size=7).digest(), "little")


def _written(value: Any) -> bytes:
    if isinstance(value, Tensor):
        return repr((value.dtype, tuple(value.shape))).encode() + value.detach().cpu().contiguous().numpy().tobytes()
    if isinstance(value, Mask):
        parts = [_written(getattr(value, each.name)) for each in dataclasses.fields(value)]
        return b"(" + type(value).__qualname__.encode() + b",".join(parts) + b")"
    if isinstance(value, (tuple, list)):
        return b"[" + b",".join(map(_written, value)) + b"]"
    return getattr(value, "__qualname__", repr(value)).encode()


def agreed_rows(rows: tuple[int, ...], told: tuple[int, ...], group: Any) -> list[list[int]]:
    """The rows of each process, where all of them tell the same of everything else: one list for each of `rows`.

    Args:
        rows: this process's, such as those of q and of k.
        told: its numbers, in the order of `NAMES`; fewer will do.
        group: of the processes.

    Raises:
        ParallelError: on every process alike, if they differ, or if one of them is gone.
    """
    size = dist.get_world_size(group)
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    mine = torch.tensor((*rows, *told), dtype=torch.int64, device=device)
    found = [torch.empty_like(mine) for _ in range(size)]
    with talking(group):
        dist.all_gather(found, mine, group=group)
    table = torch.stack(found).cpu()
    for name, column in zip(NAMES, table[:, len(rows) :].T.tolist(), strict=False):
        if len(set(column)) > 1:
            shown = "they differ" if name in DIGESTS else f"{name}={column}"
            raise ParallelError(
                f"context_parallel: expected the same {name} in every process. Received: {shown}. "
                "Masks, biases and options are those of the whole sequence; q, k and v are each process's rows"
            )
    of_each: list[list[int]] = table[:, : len(rows)].T.tolist()
    return of_each
