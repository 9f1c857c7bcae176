"""Ring attention: each process computes attention over the keys it has while the next keys and values arrive.

Liu et al. 2023, arXiv 2310.01889. Partial results are merged by their log-sum-exps. Only the keys that the rows of a
process may see are sent to it, from one other process at a time, which limits the memory. Backward sends the keys
again, and their gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.call import AttentionCall, make_call
from headwise.kernels import exact
from headwise.kernels.kept import inference_copies, name_changed, owned
from headwise.kernels.once import once_differentiable
from headwise.masks import Mask
from headwise.masks.cellwise import fixed
from headwise.native import attend as native
from headwise.native.sight import Sight, find_sight
from headwise.options import OPTIONS
from headwise.parallel.exchange import pack_rows, split, talking
from headwise.parallel.routes import Routes
from headwise.parallel.strategies.part import Cost, Part, Sizes
from headwise.softmax import Normaliser, sinks_gradient

FEWEST = 257  # the minimum of keys in a call: with fewer, the native backward needs the keys of the whole row at once
STEP = 5e-4  # the estimated seconds for one more transfer and one more call
MERGE = 1000  # the estimated operations to merge one number of an output: memory takes this time, not arithmetic


def refuse(part: Part, *, followed: bool) -> str | None:
    """Return why to refuse a call that needs whole rows of weights at once, or another kernel; None = accepted."""
    if followed:
        return "records, listeners and edits expect all keys of a row in one call"
    if part.options.get("kernel", "auto") not in ("auto", "native"):
        return "it merges parts of the kernel 'native' alone"
    given = {name: x for name in ("bias", "slopes", "softcap") if isinstance(x := part.options.get(name), Tensor)}
    trained = [name for name, x in given.items() if x.requires_grad]
    if trained and torch.is_grad_enabled():
        return f"it gives no gradient to {trained[0]}"
    if (too_small := _too_small(part.sizes)) is not None:
        return too_small
    return native.refuse(make_call(part.q, part.k, part.v, **_options(part)))


def _too_small(sizes: Sizes) -> str | None:
    parts = sizes.traffic
    if min(sizes.rows.min(), sizes.key_rows.min()) == 0:
        return "a process has no rows"
    if ((parts > 0) & (parts < FEWEST)).any():
        return f"a process gets only {int(parts[parts > 0].min())} keys of another, fewer than {FEWEST}"
    return None


def cost(sizes: Sizes) -> Cost:
    """Estimate the cost: computation and transfers run at the same time, so only the longer of both counts."""
    sent = int(sizes.keys.max()) * sizes.key_bytes
    if _too_small(sizes) is not None:
        return Cost(sent, float("inf"))
    parts = int((sizes.traffic > 0).sum(1).max())
    merging = parts * int(sizes.rows.max()) * sizes.batch * sizes.heads * sizes.value_dim * MERGE / sizes.flops
    return Cost(sent, max(sizes.computing, sent / sizes.bandwidth) + merging + STEP * len(sizes.rows))


def attend(part: Part, local: Callable[..., Any]) -> Any:
    """Compute this process's rows by the native kernels: one call for the keys of each process, then merge the results.

    Which weights dropout drops depends on this process, on a seed for each process that keys come from, and on the
    index of the weight in that call, so backward drops the same weights as forward.
    """
    seeds = [0] * part.layout.processes
    if part.options.get("dropout"):
        seeds = (torch.randint(2**62, (len(seeds),), device="cpu") + part.rank).tolist()
    options = {name: x for name in ("bias", "slopes", "sinks") if (x := part.options.get(name)) is not None}
    saved = {"q": part.q, "k": part.k, "v": part.v, **options}
    saved |= inference_copies(saved) if torch.is_grad_enabled() else {}
    names = ("q", "k", "v", "bias", "slopes", "sinks")
    out: Tensor = _Ring.apply(*map(saved.get, names), part, seeds)
    name_changed(out, options)
    return out


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        q, k, v, bias, slopes, sinks, part, seeds = given
        total = Normaliser.empty(q[..., 0].float())
        out = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=torch.float32)
        trip, is_odd = _Trip(part.routes, part.rank, part.group), False
        sights: dict[int, Sight] = {}
        masks: dict[int, tuple[Mask, int, int]] = {}
        for source, keys, *received in _received(trip, k, v):
            call = _call(part, *received, keys=keys, mask=part.masked(keys, source))
            sights[source] = find_sight(call.mask, *call.shape[2:])  # a function of the mask may change before backward
            masks |= {} if call.mask is None else {source: (call.mask, *call.shape[2:])}
            found, normaliser, odd = _computed(call, sights[source], seeds[source])
            merged, is_odd = total.merged(normaliser), is_odd or odd
            out = out * total.share(merged)[..., None] + found.float() * normaliser.share(merged)[..., None]
            total = merged
        if sinks is not None:
            merged = total.with_sinks(sinks)
            out, total = out * total.share(merged)[..., None], merged
        written = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, owned(bias), owned(slopes), owned(sinks), written, *total)
        ctx.trip, ctx.seeds, ctx.sights, ctx.is_odd = trip, seeds, sights, is_odd
        ctx.masks = {source: fixed(*given) for source, given in masks.items()} if is_odd else {}
        ctx.layout, ctx.key_layout = part.layout, part.key_layout
        ctx.options = _options(part)
        return written

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Any, ...], d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, slopes, sinks, out, highest, log_sum = saved
        trip, total = ctx.trip, Normaliser(highest, log_sum)
        given = {**ctx.options, "bias": bias, "slopes": slopes}
        part = Part(q, k, v, None, ctx.layout, ctx.key_layout, trip.rank, trip.group, given)
        dq = torch.zeros_like(q, dtype=torch.float32)
        d_rows = k.new_zeros(k.shape[2], k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3]), dtype=torch.float32)
        back = _Back(trip, d_rows)
        for source, keys, *received in _received(trip, k, v):
            call, seed = _call(part, *received, keys=keys, mask=ctx.masks.get(source)), ctx.seeds[source]
            if ctx.is_odd:
                d_part, dk, dv = exact.gradients(call, total, out, d_out, _kept(call, seed))
            else:
                found = out, total.highest, total.log_sum, d_out.contiguous()
                d_part, dk, dv, *_ = native.backward(call, *found, sight=ctx.sights[source], seed=seed)
            dq += d_part
            back.send(source, pack_rows(dk.float(), dv.float()))
        back.finish()
        dk, dv = split(d_rows.to(k.dtype), k, v)
        d_sinks = None if sinks is None else sinks_gradient(sinks, total, out, d_out)
        return dq.to(q.dtype), dk, dv, None, None, d_sinks, None, None


class _Trip(NamedTuple):
    """The data that an exchange of keys needs: which rows this process sends and receives, its rank and its group."""

    routes: Routes
    rank: int
    group: Any


def _received(trip: _Trip, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Yield the keys and values that this process needs, process by process, beginning with its own.

    Each item is (the process that they come from, their positions, keys, values). The next ones arrive while the caller
    computes.
    """
    rows, routes = pack_rows(k, v), trip.routes
    count = len(routes.sends)
    # In step s each process sends to the process s places ahead, and receives from the process s behind.
    coming = _exchanged(trip, rows, trip.rank, trip.rank)
    for step in range(1, count + 1):
        process, received, works = coming
        if step < count:
            coming = _exchanged(trip, rows, (trip.rank + step) % count, (trip.rank - step) % count)
        _wait(trip, works)
        if len(received):
            new_k, new_v = split(received, k, v)
            yield process, routes.keys[routes.receives[process]], new_k, new_v


def _exchanged(trip: _Trip, rows: Tensor, to: int, source: int) -> tuple[int, Tensor, list[Any]]:
    """Begin to send rows to process `to`, and to receive rows of `source`; return what to wait for."""
    sent = rows[trip.routes.sends[to]]
    if source == trip.rank:
        return source, sent, []
    received = rows.new_empty(len(trip.routes.receives[source]), rows.shape[1])
    works: list[Any] = [sent]  # kept alive until it is sent
    with talking(trip.group):
        if len(sent):
            works.append(dist.isend(sent.view(torch.uint8), group=trip.group, group_dst=to))
        if len(received):
            works.append(dist.irecv(received.view(torch.uint8), group=trip.group, group_src=source))
    return source, received, works


def _wait(trip: _Trip, works: list[Any]) -> None:
    with talking(trip.group):
        for each in works[1:]:
            each.wait()


class _Back:
    """Sends gradients of keys and values to the processes that hold these keys, which add them up."""

    def __init__(self, trip: _Trip, into: Tensor) -> None:
        self.trip, self.into = trip, into
        self.works: list[list[Any]] = []

    def send(self, process: int, rows: Tensor) -> None:
        """Send the gradients of the keys of a process."""
        trip = self.trip
        if process == trip.rank:
            self.into.index_add_(0, trip.routes.sends[process], rows)
            return
        rows = rows.contiguous()
        with talking(trip.group):
            self.works.append([rows, dist.isend(rows.view(torch.uint8), group=trip.group, group_dst=process, tag=1)])

    def finish(self) -> None:
        """Receive the gradients from the other processes and add them, in a fixed order: the sums are reproducible."""
        trip = self.trip
        for source, sends in enumerate(trip.routes.sends):
            if source == trip.rank or not len(sends):
                continue
            received = self.into.new_empty(len(sends), self.into.shape[1])
            with talking(trip.group):
                coming: Any = dist.irecv(received.view(torch.uint8), group=trip.group, group_src=source, tag=1)
                coming.wait()
            self.into.index_add_(0, sends, received)
        for each in self.works:
            _wait(trip, each)


def _call(part: Part, k: Tensor, v: Tensor, *, keys: Tensor, mask: Mask | None) -> AttentionCall:
    """Make the call in which this process's rows attend to the keys k and values v at the positions `keys`."""
    return make_call(part.q, k, v, mask=mask, bias=part.compute_bias(keys), **_options(part))


def _options(part: Part) -> dict[str, Any]:
    """Return the options that every call of the ring gets: all but bias and slopes (cut to its keys) and sinks.

    Sinks are added to the softmax once, at the end.
    """
    apart = ("bias", "slopes", "sinks")
    return {name: x for name, x in part.options.items() if name in OPTIONS and name not in apart and x is not None}


def _computed(call: AttentionCall, sight: Sight, seed: int) -> tuple[Tensor, Normaliser, bool]:
    """Compute (the output of a call over some keys, the normaliser of its softmax, whether anything is not finite).

    If a number is not finite, the output is computed by the plain definition of attention, so that NaN or infinity
    reaches only the rows that may see it.
    """
    out = _empty(call)
    normaliser = Normaliser(*(call.q.new_empty(call.q.shape[:3], dtype=torch.float32) for _ in range(2)))
    finite = native.forward(call, out, sight=sight, seed=seed, **normaliser._asdict())
    if finite and exact.is_finite(call.k, call.v):
        return out, normaliser, False
    return exact.by_definition(call, out, None, _kept(call, seed)), Normaliser.of(call.scores()), True


def _kept(call: AttentionCall, seed: int) -> Tensor | None:
    """Find which weights dropout keeps with this seed (see `exact.kept_weights`); None = the call has no dropout."""

    def again(other: AttentionCall) -> Tensor:
        out = _empty(other)
        native.forward(other, out, seed=seed)
        return out

    return exact.kept_weights(call, again, None) if call.dropout else None


def _empty(call: AttentionCall) -> Tensor:
    return call.q.new_empty((*call.q.shape[:3], call.v.shape[3]))
