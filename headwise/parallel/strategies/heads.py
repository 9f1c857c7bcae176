"""Each process gets all rows of some heads, and gives the rows of the output back (DeepSpeed Ulysses).

Jacobs et al. 2023, arXiv 2309.14509, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.masks.share import cut_share
from headwise.options import OPTIONS
from headwise.parallel.exchange import Turned, all_to_all
from headwise.parallel.layout import Layout
from headwise.parallel.strategies.part import Cost, Part, Sizes


def refuse(part: Part, *, followed: bool) -> str | None:
    """Return why this strategy cannot run a call; None if it can.

    It refuses numbers of heads that are no multiples of the number of processes, and calls that a record or an edit
    gets (`followed`).
    """
    count = part.layout.processes
    heads, key_heads = part.q.shape[1], part.k.shape[1]
    if heads % count or key_heads % count:
        return f"{heads} heads and {key_heads} key heads cannot be dealt to {count} processes"
    if min(part.sizes.rows.min(), part.sizes.key_rows.min()) == 0:
        return "a process has no rows"
    if followed:
        return "records, listeners and edits expect all heads of a row in one call"
    return None


def cost(sizes: Sizes) -> Cost:
    """Estimate the cost of sending q, k, v and the output; every process computes equally many cells."""
    if sizes.heads % len(sizes.rows) or sizes.key_heads % len(sizes.rows):
        return Cost(0, float("inf"))
    others = 1 - 1 / len(sizes.rows)
    numbers = int(sizes.rows.max()) * sizes.heads + int(sizes.key_rows.max()) * sizes.key_heads
    sent = int(others * sizes.batch * numbers * (sizes.dim + sizes.value_dim) * sizes.itemsize)
    computing = sizes.computing * sizes.cells.mean() / max(sizes.cells.max(), 1.0)
    return Cost(sent, computing + sent / sizes.bandwidth)


def attend(part: Part, local: Callable[..., Any]) -> Any:
    """Exchange rows for heads, compute this process's heads over the whole sequence by `local`, and exchange back."""
    count, rank = part.layout.processes, part.rank

    def own(x: Tensor, dim: int) -> Tensor:
        """Return the part of x for this process's heads."""
        return x if x.shape[dim] == 1 else x.chunk(count, dim)[rank]

    def ways(layout: Layout) -> list[Callable[[Tensor], Tensor]]:
        return [partial(turn, layout=layout, group=part.group) for turn in (_there, _back)]

    q = Turned.apply(part.q, *ways(part.layout))
    k, v = (Turned.apply(x, *ways(part.dealt_keys)) for x in (part.k, part.v))
    options = dict(part.options)
    for name, option in OPTIONS.items():
        if (x := options.get(name)) is not None and (dims := option.dims):
            options[name] = own(x[(None,) * (len(dims) - x.ndim)], dims.index("H"))
    mask, here = part.mask, slice(rank * q.shape[1], (rank + 1) * q.shape[1])
    mask = None if mask is None else cut_share(mask, slice(0, len(q)), here)
    return Turned.apply(local(q, k, v, mask=mask, **options), *reversed(ways(part.layout)))


def _there(x: Tensor, layout: Layout, group: Any) -> Tensor:
    """Exchange rows for heads: [B, H, S, D] of this process's rows becomes [B, H / P, N, D] of its share of heads."""
    count = layout.processes
    rows = [len(each) for each in layout.positions]
    mine, own = rows[dist.get_rank(group)], x.shape[1] // count
    sent = x.unflatten(1, (count, own)).permute(1, 3, 0, 2, 4)  # [P, S, B, H / P, D]
    found = all_to_all(sent.reshape(count * mine, -1), [mine] * count, rows, group)
    joined = layout.joined(list(found.split(rows)), 0)
    return joined.unflatten(1, (x.shape[0], own, x.shape[3])).permute(1, 2, 0, 3)


def _back(x: Tensor, layout: Layout, group: Any) -> Tensor:
    """Undo `_there`: [B, H / P, N, D] of this process's heads becomes [B, H, S, D] of its rows, by an exchange."""
    count = dist.get_world_size(group)
    rows = [len(each) for each in layout.positions]
    mine = rows[dist.get_rank(group)]
    order = torch.cat(layout.positions).to(x.device)
    sent = x.permute(2, 0, 1, 3).reshape(len(order), -1)[order]  # first the rows for process 0
    found = all_to_all(sent, rows, [mine] * count, group)
    heads = found.unflatten(0, (count, mine)).unflatten(2, (x.shape[0], x.shape[1], x.shape[3]))
    return heads.permute(2, 0, 3, 1, 4).flatten(1, 2)  # [B, H, S, D]
