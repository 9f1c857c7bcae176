"""Keys and values travel from process to process while those that are here are computed (ring attention).

Liu et al. 2023, arXiv 2310.01889. Partial results are merged by their log-sum-exps. Only the keys that a process may
see come to it, those of one other process at a time: that is all the memory they take. Backward sends them again, and
their gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.call import AttentionCall, make_call
from headwise.kernels import reference
from headwise.kernels.once import once_differentiable
from headwise.native import attend as native
from headwise.options import OPTIONS
from headwise.parallel.exchange import rows_of, split, talking
from headwise.parallel.strategies.part import Cost, Part, Sizes
from headwise.softmax import Normaliser, sinks_gradient

FEWEST = 257  # keys of a part: for fewer, the native backward needs those of the whole row at once
STEP = 5e-4  # seconds, nominal: of one more transfer and one more call
MERGE = 1000  # operations, nominal, for each number of an output that is merged: memory, not arithmetic, takes the time


def refuse(part: Part, *, followed: bool) -> str | None:
    """What needs whole rows of weights at once, or another kernel than the native ones."""
    if followed:
        return "records, listeners and edits expect all keys of a row in one call"
    if part.options.get("kernel", "auto") not in ("auto", "native"):
        return "it merges parts of the kernel 'native' alone"
    learned = [x for name in ("bias", "slopes") if (x := part.options.get(name)) is not None and x.requires_grad]
    if learned and torch.is_grad_enabled():
        return "a bias or slopes that train get no gradient"
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
    """What takes longer, the computation or the transfers."""
    sent = int(sizes.keys.max()) * sizes.key_bytes
    if _too_small(sizes) is not None:
        return Cost(sent, float("inf"))
    parts = int((sizes.traffic > 0).sum(1).max())
    merging = parts * int(sizes.rows.max()) * sizes.batch * sizes.heads * sizes.value_dim * MERGE / sizes.flops
    return Cost(sent, max(sizes.computing, sent / sizes.bandwidth) + merging + STEP * len(sizes.rows))


def attend(part: Part, local: Callable[..., Any]) -> Any:
    """By the native kernels, once for the keys of each process.

    Which weights are dropped follows from a seed for each part, their place in it, and the process: the same forward
    and backward.
    """
    seeds = [0] * part.layout.processes
    if part.options.get("dropout"):
        seeds = (torch.randint(2**62, (len(seeds),), device="cpu") + part.rank).tolist()
    return _Ring.apply(part.q, part.k, part.v, part.options.get("sinks"), part, seeds)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, part: Part, seeds: list[int]
    ) -> Tensor:
        total = Normaliser.empty(q[..., 0].float())
        out = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=torch.float32)
        for source, call in _calls(part, q, k, v):
            found, normaliser = _computed(call, seeds[source])
            merged = total.merged(normaliser)
            out = out * total.share(merged)[..., None] + found.float() * normaliser.share(merged)[..., None]
            total = merged
        if sinks is not None:
            merged = total.with_sinks(sinks)
            out, total = out * total.share(merged)[..., None], merged
        written = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks, written, *total)
        ctx.part, ctx.seeds = part, seeds
        return written

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, highest, log_sum = ctx.saved_tensors
        part, seeds, total = ctx.part, ctx.seeds, Normaliser(highest, log_sum)
        dq = torch.zeros_like(q, dtype=torch.float32)
        d_rows = k.new_zeros(k.shape[2], k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3]), dtype=torch.float32)
        back = _Back(part, d_rows)
        for source, call in _calls(part, q, k, v):
            given = call, out, total.highest, total.log_sum
            d_part, dk, dv, *_ = native.backward(*given, d_out.contiguous(), seed=seeds[source])
            dq += d_part
            back.send(source, rows_of(dk.float(), dv.float()))
        back.finish()
        dk, dv = split(d_rows.to(k.dtype), k, v)
        d_sinks = None if sinks is None else sinks_gradient(sinks, total, out, d_out)
        return dq.to(q.dtype), dk, dv, d_sinks, None, None


def _calls(part: Part, q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[int, AttentionCall]]:
    """(the process, the call of this process's rows over its keys), this one first; the next keys come meanwhile."""
    rows, routes = rows_of(k, v), part.routes
    count = part.layout.processes
    # In step s each process sends to the one s places on, and receives from the one s places back.
    coming = _exchanged(part, rows, part.rank, part.rank)
    for step in range(1, count + 1):
        process, received, works = coming
        if step < count:
            coming = _exchanged(part, rows, (part.rank + step) % count, (part.rank - step) % count)
        _wait(part, works)
        if len(received):
            keys = routes.keys[routes.receives[process]]
            yield process, _call(part, q, *split(received, k, v), keys=keys, process=process)


def _exchanged(part: Part, rows: Tensor, to: int, source: int) -> tuple[int, Tensor, list[Any]]:
    """Begin to send what `to` needs, and to receive what is needed of `source`."""
    sent = rows[part.routes.sends[to]]
    if source == part.rank:
        return source, sent, []
    received = rows.new_empty(part.routes.receive_counts[source], rows.shape[1])
    works: list[Any] = [sent]  # held until it is sent
    with talking(part.group):
        if len(sent):
            works.append(dist.isend(sent.view(torch.uint8), group=part.group, group_dst=to))
        if len(received):
            works.append(dist.irecv(received.view(torch.uint8), group=part.group, group_src=source))
    return source, received, works


def _wait(part: Part, works: list[Any]) -> None:
    with talking(part.group):
        for each in works[1:]:
            each.wait()


class _Back:
    """Gradients of keys and values on their way to the processes that hold these; they are added there."""

    def __init__(self, part: Part, into: Tensor) -> None:
        self.part, self.into = part, into
        self.works: list[list[Any]] = []

    def send(self, process: int, rows: Tensor) -> None:
        """Those of the keys of a process."""
        if process == self.part.rank:
            self.into.index_add_(0, self.part.routes.sends[process], rows)
            return
        rows = rows.contiguous()
        with talking(self.part.group):
            self.works.append(
                [rows, dist.isend(rows.view(torch.uint8), group=self.part.group, group_dst=process, tag=1)]
            )

    def finish(self) -> None:
        """Add what the others have sent, in the order of processes, so that sums come out alike."""
        part = self.part
        for source, sends in enumerate(part.routes.sends):
            if source == part.rank or not len(sends):
                continue
            received = self.into.new_empty(len(sends), self.into.shape[1])
            with talking(part.group):
                coming: Any = dist.irecv(received.view(torch.uint8), group=part.group, group_src=source, tag=1)
                coming.wait()
            self.into.index_add_(0, sends, received)
        for each in self.works:
            _wait(part, each)


def _call(part: Part, q: Tensor, k: Tensor, v: Tensor, *, keys: Tensor, process: int) -> AttentionCall:
    return make_call(q, k, v, mask=part.masked(keys, process), bias=part.bias_of(keys), **_options(part))


def _options(part: Part) -> dict[str, Any]:
    """The options that are the same for all keys; sinks are added at the end, once."""
    apart = ("bias", "slopes", "sinks")
    return {name: x for name, x in part.options.items() if name in OPTIONS and name not in apart and x is not None}


def _computed(call: AttentionCall, seed: int) -> tuple[Tensor, Normaliser]:
    """The output over some keys, and its normaliser."""
    out = call.q.new_empty((*call.q.shape[:3], call.v.shape[3]))
    highest, log_sum = (call.q.new_empty(call.q.shape[:3], dtype=torch.float32) for _ in range(2))
    finite = native.forward(call, out, seed=seed, highest=highest, log_sum=log_sum)
    if finite or call.dropout:  # (by the definition others would be dropped than backward takes to be)
        return out, Normaliser(highest, log_sum)
    # NaN or infinity: by the definition, so that it reaches only the rows that may see it.
    return reference.run(call), Normaliser.of(call.scores())
