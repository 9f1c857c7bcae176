"""Rows that travel between processes, and their gradients that travel back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.errors import ParallelError
from headwise.kernels.once import once_differentiable
from headwise.parallel.routes import Routes


@contextmanager
def talking(group: Any) -> Iterator[None]:
    """Inside, an error of torch.distributed says what it means."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ParallelError):
            raise
        raise ParallelError(
            f"process {dist.get_rank(group)} of {dist.get_world_size(group)} lost the others: one of them has ended, "
            f"does not answer, or computes something else. Received: {error}. Look at the first error of each process, "
            "and start them all again"
        ) from error


def all_to_all(x: Tensor, sends: list[int], receives: list[int], group: Any) -> Tensor:
    """Rows of x [sum of sends, ...], the first for process 0: what the others send here, [sum of receives, ...]."""
    out = x.new_empty(sum(receives), *x.shape[1:])
    with talking(group):
        dist.all_to_all_single(_bytes(out), _bytes(x.contiguous()), receives, sends, group=group)
    return out


def _bytes(x: Tensor) -> Tensor:
    """The memory of a contiguous tensor, [rows, bytes], which every backend can send."""
    flat = x.detach().flatten(1)
    # torch calls [n, 1] contiguous whatever its last stride is, and `view` does not.
    return flat.as_strided(flat.shape, (flat.shape[1], 1)).view(torch.uint8)


def all_gather(x: Tensor, counts: list[int], group: Any) -> list[Tensor]:
    """The rows of every process, x [its count, ...] here.

    Where some have far fewer than others, nothing but the rows travels; else they are filled up to travel at once.
    """
    out = [x.new_empty(count, *x.shape[1:]) for count in counts]
    size = max(counts)
    if len(counts) * size >= 2 * sum(counts):
        out[dist.get_rank(group)].copy_(x)
        with talking(group):
            for process, rows in enumerate(out):
                if rows.numel():
                    dist.broadcast(_bytes(rows), group=group, group_src=process)
        return out
    padded = torch.nn.functional.pad(_bytes(x.contiguous()), (0, 0, 0, size - len(x)))
    found = [torch.empty_like(padded) for _ in counts]
    with talking(group):
        dist.all_gather(found, padded, group=group)
    for each, rows in zip(out, found, strict=True):
        _bytes(each).copy_(rows[: len(each)])
    return out


def rows_of(k: Tensor, v: Tensor) -> Tensor:
    """Keys [B, G, S, D] and values [B, G, S, E] as the rows that travel, [S, B G (D + E)]."""
    width = k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3])  # (not -1: there may be no rows)
    return torch.cat([k, v], -1).permute(2, 0, 1, 3).reshape(k.shape[2], width)


def split(rows: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Rows as keys and values again, with the sizes of k and v."""
    heads = rows.unflatten(1, (k.shape[0], k.shape[1], k.shape[3] + v.shape[3])).permute(1, 2, 0, 3)
    return list(heads.split([k.shape[3], v.shape[3]], -1))


def needed_rows(x_SX: Tensor, routes: Routes, group: Any) -> Tensor:
    """The rows of the whole sequence that this process needs, [K, ...], from those of each process, [S, ...]."""
    found: Tensor = _Needed.apply(x_SX, routes, group)
    return found


class _Needed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_SX: Tensor, routes: Routes, group: Any) -> Tensor:
        ctx.rest = routes, group, len(x_SX)
        received = all_to_all(x_SX[torch.cat(routes.sends)], routes.send_counts, routes.receive_counts, group)
        return torch.empty_like(received).index_copy_(0, torch.cat(routes.receives), received)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_KX: Tensor) -> tuple[Tensor | None, ...]:
        routes, group, rows = ctx.rest
        sent = d_KX[torch.cat(routes.receives)]
        back = all_to_all(sent, routes.receive_counts, routes.send_counts, group)
        return back.new_zeros(rows, *back.shape[1:]).index_add_(0, torch.cat(routes.sends), back), None, None


class Turned(torch.autograd.Function):
    """`there(x)`, whose gradient is what `back` makes of it: a change of layout that is a permutation of all rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(d_out), None, None
