"""Counts tries of Ray workers. A separate process imports this file, so it imports nothing."""

from __future__ import annotations

TRIES = 3  #: the most tries of an item whose worker dies, and of loading the model, per worker


class Tries:
    """Counts how often each item was begun, and how often a model was loaded since the last finished item.

    Args:
        loads: the most times that a model may be loaded, over all workers.
    """

    def __init__(self, loads: int) -> None:
        self._loads = loads
        self._loaded = 0
        self._begun: dict[int, int] = {}

    def loads(self) -> bool:
        """Whether a worker may load the model."""
        self._loaded += 1
        return self._loaded <= self._loads

    def begins(self, item: int) -> bool:
        """Whether a worker may compute an item."""
        self._begun[item] = self._begun.get(item, 0) + 1
        return self._begun[item] <= TRIES

    def ends(self, item: int) -> None:
        """Note that an item is computed."""
        self._loaded = 0
        self._begun.pop(item, None)
