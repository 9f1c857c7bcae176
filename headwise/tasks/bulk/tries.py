"""Counts how often Ray workers try. A separate process imports this file, so it imports nothing."""

from __future__ import annotations

TRIES = 3  #: how often an item whose worker dies is tried, and loading the model, per worker


class Tries:
    """Counts how often each item was begun, and how often the model was loaded since the last finished item.

    Args:
        loads: how often the model may be loaded at most, over all workers, between two finished items.
    """

    def __init__(self, loads: int) -> None:
        self._loads = loads
        self._loaded = 0
        self._begun: dict[int, int] = {}

    def loads(self) -> bool:
        """Count one more load of the model, and return whether the worker may load it."""
        self._loaded += 1
        return self._loaded <= self._loads

    def begins(self, item: int) -> bool:
        """Count one more begin of this item, and return whether the worker may compute it."""
        self._begun[item] = self._begun.get(item, 0) + 1
        return self._begun[item] <= TRIES

    def ends(self, item: int) -> None:
        """Note that an item is computed."""
        self._loaded = 0
        self._begun.pop(item, None)
