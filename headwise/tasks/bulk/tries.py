"""Counts tries of Ray workers. A process of its own imports this, so it imports nothing."""

from __future__ import annotations

TRIES = 3  #: how often an item is computed whose worker ends; a model is loaded so often for each worker


class Tries:
    """How often each item was begun, and how often a model was loaded since the last item was finished.

    Args:
        loads: how often a model may be loaded, by all workers.
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
        """An item is computed."""
        self._loaded = 0
        self._begun.pop(item, None)
