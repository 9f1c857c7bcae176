"""Checks that all processes make the same call before any data are sent, so that no process waits forever."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.errors import ParallelError, brief
from headwise.masks import Mask
from headwise.parallel.exchange import talking

WIDTH = 16  # how many numbers each process sends: the same in every call, so that even different calls can be compared
NAMES = ("B", "H", "G", "D", "E", "dtype", "mask", "options", "layout", "memory")  # these must be the same
DIGESTS = ("mask", "options", "layout", "memory")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def digest_mask(mask: Mask | None) -> int:
    """Compute a number that is the same for equal masks, on every machine. Of a function only its name is compared."""
    if mask is None:
        return 0
    return mask.remember(("digest",), lambda mask: _number(_written(mask)))


def digest_options(options: dict[str, Any]) -> int:
    """Compute a number that is the same for equal options and shapes; a bias may have only the process's rows."""
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
    """Check that the processes agree, and return how many rows each process has: one list for each entry of `rows`.

    Args:
        rows: the numbers of rows of this process, such as those of q and of k. They may differ between processes.
        told: the numbers of this process that must be equal in all processes: sizes, dtype, digests of masks …, in the
            order of `NAMES`; there may be fewer.
        group: the group of the processes.

    Raises:
        ParallelError: on every process, if the numbers differ, or if a process is gone.
    """
    of_rows = {f"rows {place}": count for place, count in enumerate(rows)}
    table = told_by_all("context_parallel", {**of_rows, **dict(zip(NAMES, told, strict=False))}, group)
    for name in NAMES[: len(told)]:
        column = [row[name] for row in table]
        if len(set(column)) > 1:
            names = dict(enumerate(DTYPES)) if name == "dtype" else {}
            told_here = [str(names.get(number, number)) for number in column]
            shown = "they differ" if name in DIGESTS else f"{name}: {', '.join(told_here)}"
            raise ParallelError(
                f"context_parallel: expected the same {name} in every process. Received: {shown}. "
                "Masks, biases and options are those of the whole sequence; q, k and v are each process's rows"
            )
    return [[row[name] for row in table] for name in of_rows]


def agree(what: str, question: Mapping[str, object], group: Any, failed: Exception | None = None) -> None:
    """Wait until all processes have called this; raise an error if their questions differ or one of them has failed.

    Args:
        what: what the question is about, for messages.
        question: names and values, which are compared by their `repr`; at most `WIDTH` - 2 names.
        group: the group of the processes.
        failed: the error of this process, or None; this error is raised if all processes ask the same question.

    Raises:
        ParallelError: on every process, if the questions differ or a process is gone; if one process has failed, on the
            other processes.
    """
    told = {"failed": int(failed is not None), **{name: _number(repr(x).encode()) for name, x in question.items()}}
    table = told_by_all(what, told, group)
    for name, value in question.items():
        if len({row[name] for row in table}) > 1:
            raise ParallelError(
                f"{what}: expected the same {name} in every process. Received: {name}={brief(value)} in process "
                f"{dist.get_rank(group)}, and others elsewhere. Every process asks the same, in the same order"
            )
    if failed is not None:
        raise failed
    if others := [number for number, row in enumerate(table) if row["failed"]]:
        raise ParallelError(
            f"{what}: process {others[0]} cannot answer its part. Look at the error of that process, and ask again"
        )


@contextmanager
def agreeing(what: str, question: Mapping[str, object], group: Any) -> Iterator[None]:
    """Return a context in which this process computes its part of an answer; at its end all processes call `agree`."""
    failed = None
    try:
        yield
    except ParallelError:  # all processes know it
        raise
    except Exception as error:  # the others wait for an answer, whatever the error is
        failed = error
    agree(what, question, group, failed)


def told_by_all(what: str, told: Mapping[str, int], group: Any) -> list[dict[str, int]]:
    """Exchange numbers; return those of each process, by name. ParallelError on all if they do different things."""
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    numbers = [_number(repr((what, sorted(told))).encode()), *told.values()]
    mine = torch.tensor([*numbers, *[0] * (WIDTH - len(numbers))], dtype=torch.int64, device=device)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with talking(group):
        dist.all_gather(found, mine, group=group)
    rows = torch.stack(found).tolist()
    if len({row[0] for row in rows}) > 1:
        raise ParallelError(
            f"{what}: expected every process to do this now. Received: something else in some of them. Every process "
            "makes the same calls, in the same order"
        )
    return [dict(zip(told, row[1:], strict=False)) for row in rows]
