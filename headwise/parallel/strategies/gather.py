"""Each process gets the keys and values that its rows may see, then computes its rows in one call, by any kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headwise.parallel.exchange import needed_rows
from headwise.parallel.strategies.part import Cost, Part, Sizes


def refuse(part: Part, *, followed: bool) -> str | None:
    """Nothing: it takes every call."""
    return None


def cost(sizes: Sizes) -> Cost:
    """The keys arrive before the computation begins."""
    sent = int(sizes.keys.max()) * sizes.key_bytes
    return Cost(sent, sizes.computing + sent / sizes.bandwidth)


def attend(part: Part, local: Callable[..., Any]) -> Any:
    """By one call of `local`: records, listeners and edits see it, with the mask of this process's rows."""
    batch, key_heads, _, dim = part.k.shape
    rows = torch.cat([part.k, part.v], -1).permute(2, 0, 1, 3).contiguous()  # [S, B, G, D + E]
    k, v = (
        needed_rows(rows.flatten(1), part.routes, part.group)
        .unflatten(1, (batch, key_heads, -1))
        .permute(1, 2, 0, 3)
        .split([dim, part.v.shape[3]], -1)
    )
    keys = part.routes.keys
    options = {**part.options, "bias": part.bias_of(keys), "slopes": None}
    return local(part.q, k, v, mask=part.masked(keys, "gather"), **options)
