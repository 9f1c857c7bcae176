"""Counts how often Ray workers try something. A separate process imports this file, so it imports nothing."""

from __future__ import annotations

TRIES = 3  #: how often an item is tried if its worker dies, and the model is loaded per worker


class Tries:
    """Counts how often workers began each item, and how often they loaded the model since an item was last finished.

    Args:
        loads: how often the model may be loaded at most, over all workers, between two finished items.
    """

    def __init__(self, loads: int) -> None:
        self._loads = loads
        self._loaded = 0
        self._begun: dict[int, int] = {}

    def loads(self) -> bool:
        """Count one more load of the model. Returns whether the worker may load it."""
        self._loaded += 1
        return self._loaded <= self._loads

    def begins(self, item: int) -> bool:
        """Count that a worker begins this item once more. Returns whether the worker may compute it."""
        self._begun[item] = self._begun.get(item, 0) + 1
        return self._begun[item] <= TRIES

    def ends(self, item: int) -> None:
        """Record that an item is finished, which also sets the count of loads to 0."""
        self._loaded = 0
        self._begun.pop(item, None)
