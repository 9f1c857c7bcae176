"""Each process gets the keys and values that its rows may see, then computes its rows in one call, by any kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwise.parallel.exchange import needed_keys
from headwise.parallel.strategies.part import Cost, Part, Sizes


def refuse(part: Part, *, followed: bool) -> str | None:
    """Return None: this strategy accepts every call."""
    return None


def cost(sizes: Sizes) -> Cost:
    """Estimate the cost of a forward pass in which all keys arrive before the computation begins."""
    sent = int(sizes.keys.max()) * sizes.key_bytes
    return Cost(sent, sizes.computing + sent / sizes.bandwidth)


def attend(part: Part, local: Callable[..., Any]) -> Any:
    """Receive the needed keys, then compute this process's rows by one call of `local`, which records and edits see."""
    k, v = needed_keys(part.k, part.v, part.routes, part.rank, part.group)
    return part.over(local, k, v, part.routes.keys, "gather")
