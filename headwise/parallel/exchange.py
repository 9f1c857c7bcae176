"""Sends rows between processes, and their gradients back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.errors import ParallelError
from headwise.kernels.once import once_differentiable
from headwise.parallel.routes import Routes


@contextmanager
def talking(group: Any) -> Iterator[None]:
    """Return a context that turns an error of torch.distributed into a ParallelError that says what it means."""
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
    """Send rows of x [sum of sends, ...], first to process 0; returns the received rows [sum of receives, ...]."""
    out = x.new_empty(sum(receives), *x.shape[1:])
    with talking(group):
        dist.all_to_all_single(_bytes(out), _bytes(x.contiguous()), receives, sends, group=group)
    return out


def _bytes(x: Tensor) -> Tensor:
    """View a contiguous tensor as bytes, uint8 [rows, bytes]: every backend can send bytes, but not every dtype."""
    flat = x.detach().flatten(1)
    # torch calls [n, 1] contiguous for any last stride, and `view` does not.
    return flat.as_strided(flat.shape, (flat.shape[1], 1)).view(torch.uint8)


def all_gather(x: Tensor, counts: list[int], group: Any) -> list[Tensor]:
    """Return the rows of every process; x [count, ...] are the rows of this process.

    If some processes have far fewer rows than others, the rows are sent process by process. Otherwise the rows of all
    processes are padded to equal numbers and sent at once.
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


def pack_rows(k: Tensor, v: Tensor) -> Tensor:
    """Arrange keys [B, G, S, D] and values [B, G, S, E] as rows to send, [S, B G (D + E)]."""
    width = k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3])  # (reshape with -1 fails if there are no rows)
    return torch.cat([k, v], -1).permute(2, 0, 1, 3).reshape(k.shape[2], width)


def split(rows: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Undo `pack_rows`: arrange rows [S, B G (D + E)] as keys and values again, with the sizes of k and v but for S."""
    heads = rows.unflatten(1, (k.shape[0], k.shape[1], k.shape[3] + v.shape[3])).permute(1, 2, 0, 3)
    return list(heads.split([k.shape[3], v.shape[3]], -1))


def needed_keys(k: Tensor, v: Tensor, routes: Routes, rank: int, group: Any) -> tuple[Tensor, Tensor]:
    """Return the keys and values that this process's queries need, [B, G, K, D] and [B, G, K, E].

    `k` and `v` [B, G, S, ·] are those that this process holds: they are copied, and the others are received.
    """
    found: tuple[Tensor, Tensor] = _Needed.apply(k, v, routes, rank, group)
    return found


class _Needed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, routes: Routes, rank: int, group: Any) -> tuple[Tensor, ...]:
        ways = _Ways.of(routes, rank, k.device)
        ctx.rest = ways, group, k.shape[2]
        received = all_to_all(pack_rows(k[:, :, ways.sent], v[:, :, ways.sent]), ways.sends, ways.receives, group)
        found = []
        for own, new in zip((k, v), split(received, k, v), strict=True):
            whole = own.new_empty(*own.shape[:2], len(routes.keys), own.shape[3])
            whole[:, :, ways.kept_at] = own[:, :, ways.kept]
            whole[:, :, ways.received_at] = new
            found.append(whole)
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: object, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        ways, group, rows = ctx.rest
        away = pack_rows(dk[:, :, ways.received_at], dv[:, :, ways.received_at])
        back = split(all_to_all(away, ways.receives, ways.sends, group), dk, dv)
        found = []
        for own, new in zip((dk, dv), back, strict=True):
            total = own.new_zeros(*own.shape[:2], rows, own.shape[3])
            total[:, :, ways.kept] = own[:, :, ways.kept_at]
            found.append(total.index_add_(2, ways.sent, new))  # several processes may have received the same row
        return *found, None, None, None


class _Ways(NamedTuple):
    """Routes (which rows are sent to which process), with the rows that stay in this process listed separately."""

    kept: Tensor | slice  # the indices of this process's rows that this process needs itself
    kept_at: Tensor | slice  # the indices of these rows among all keys that this process needs
    sent: Tensor  # the indices of this process's rows that others need, first the rows for process 0
    received_at: Tensor  # the indices of received rows among all keys that this process needs
    sends: list[int]  # the number of rows sent to each process; 0 for this process
    receives: list[int]  # the number of rows received from each process; 0 from this process

    @classmethod
    def of(cls, routes: Routes, rank: int, device: torch.device) -> _Ways:
        sent, received = ([x[:0] if p == rank else x for p, x in enumerate(each)] for each in routes[1:])
        return cls(
            _run(routes.sends[rank].to(device)),
            _run(routes.receives[rank].to(device)),
            torch.cat(sent).to(device),
            torch.cat(received).to(device),
            [len(each) for each in sent],
            [len(each) for each in received],
        )


def _run(places: Tensor) -> Tensor | slice:
    """Return ascending indices as a slice if there is no gap between them, because a slice is copied faster."""
    if not len(places):
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places


class Turned(torch.autograd.Function):
    """Computes `there(x)`; its gradient is `back(gradient)`. For an exchange between processes that only moves rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: object, d_out: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(d_out), None, None
