"""The strategies by which processes share a call. Each says why it refuses a call, or what the call would cost."""

from __future__ import annotations

from headwise.errors import KernelRefused
from headwise.parallel.strategies import gather, heads, ring
from headwise.parallel.strategies.part import Part, Strategy

# Of two strategies with the same cost, the first is taken.
STRATEGIES: dict[str, Strategy] = {"gather": gather, "ring": ring, "heads": heads}


def choose(part: Part, strategy: str, *, followed: bool) -> Strategy:
    """Return the named strategy, or for "auto" the cheapest that accepts. KernelRefused if the named one refuses."""
    if strategy != "auto":
        asked = STRATEGIES[strategy]
        why = asked.refuse(part, followed=followed)
        if why is not None:
            raise KernelRefused(f"strategy {strategy!r} cannot run this call: {why}. Use strategy='auto'")
        return asked
    ready = [each for each in STRATEGIES.values() if each.refuse(part, followed=followed) is None]
    return min(ready, key=lambda each: each.cost(part.sizes).time)
