"""`Parts`: the parts of a followed model, how often each of them runs, and its computations in a run."""

from __future__ import annotations

import abc
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Set
from typing import Any

from headwise.capture.sites import Place
from headwise.records import CallSite


class _Here(threading.local):
    """The runs of parts in this thread."""

    def __init__(self) -> None:
        self.run: dict[int, int] = {}  # id of a part -> the number of its run
        self.count: Counter[int] = Counter()  # id of a part -> the computations of this run so far
        self.before: dict[int, int] = {}  # id of a part -> how often it had run when the model began
        # Passes for which functions are listened to again: how many ran inside one another, and the context to end.
        self.brought: list[tuple[int, contextlib.ExitStack]] = []


class Parts(abc.ABC):
    """The parts of a model, modules or Keras layers: counts their runs and their computations in each run."""

    looked_for: str  # the beginning of a sentence that says what is recognised, and where

    def __init__(self) -> None:
        self.ran = False  # whether any of them ran where it was followed
        self._runs: Counter[int] = Counter()
        self._here = _Here()

    @abc.abstractmethod
    def has(self, part: Any) -> bool:
        """Whether the model has this part."""

    @abc.abstractmethod
    def place(self) -> Place | None:
        """The innermost part that is running; None if no part runs, or if it reports its attention itself."""

    @abc.abstractmethod
    def notes(self) -> Iterable[str]:
        """Notes on how the parts run differently while they are followed."""

    @abc.abstractmethod
    def closed(self, known: Set[str]) -> Iterable[CallSite]:
        """The parts inside which nothing can be seen. `known`: the paths of the parts of which something is known."""

    def listening(self, missed: Callable[[str], object]) -> contextlib.AbstractContextManager[None]:
        """Inside, runs of parts are noticed; `missed` gets the path of a part that runs where it cannot be followed."""
        return contextlib.nullcontext()

    def is_outside(self) -> bool:
        """Whether no part runs, asked where `place` gives None."""
        return True

    def began(self, part: int) -> None:
        """Note that the part with this id begins a run."""
        self.ran = True
        self._here.run[part] = self._runs[part]
        self._here.count[part] = 0
        self._runs[part] += 1

    def run_of(self, place: Place) -> int:
        """The number of the run of its part that a place is in."""
        return self._here.run.get(id(place.module), 0)

    def number_of(self, place: Place) -> int:
        """The number that the next computation of a place has in this run."""
        return self._here.count[id(place.module)]

    def computed(self, place: Place) -> None:
        """Note that a place has made its next computation."""
        self._here.count[id(place.module)] += 1
