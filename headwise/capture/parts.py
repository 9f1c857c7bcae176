"""`Parts`: what a followed model is made of, how often each part runs, and what it computes in a run."""

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
    """What runs in this thread."""

    def __init__(self) -> None:
        self.run: dict[int, int] = {}  # id of a part -> the number of its run
        self.count: Counter[int] = Counter()  # id of a part -> the computations of this run so far
        self.before: dict[int, int] = {}  # id of a part -> how often it had run when the model began
        # Passes for which functions are listened to again: how many were inside one another, and what ends that.
        self.brought: list[tuple[int, contextlib.ExitStack]] = []


class Parts(abc.ABC):
    """What a model is made of, modules or layers of Keras: counts their runs, and what they compute in each."""

    looked_for: str  # what is recognised, in which kind of place: the beginning of a sentence

    def __init__(self) -> None:
        self.ran = False  # whether any of them ran where it was followed
        self._runs: Counter[int] = Counter()
        self._here = _Here()

    @abc.abstractmethod
    def has(self, part: Any) -> bool:
        """Whether the model has this part."""

    @abc.abstractmethod
    def place(self) -> Place | None:
        """The innermost part that is running; None if there is none, or if it tells of its attention itself."""

    @abc.abstractmethod
    def notes(self) -> Iterable[str]:
        """What was changed in how they run."""

    @abc.abstractmethod
    def closed(self, known: Set[str]) -> Iterable[CallSite]:
        """The parts that nothing can be seen in. `known`: the paths of which something is known."""

    def listening(self, missed: Callable[[str], object]) -> contextlib.AbstractContextManager[None]:
        """Inside, runs of the parts are heard of; `missed` of the path of one that runs where nobody can follow it."""
        return contextlib.nullcontext()

    def is_outside(self) -> bool:
        """Where there is no place: whether no part runs."""
        return True

    def began(self, part: int) -> None:
        """A part, by its id, begins a run."""
        self.ran = True
        self._here.run[part] = self._runs[part]
        self._here.count[part] = 0
        self._runs[part] += 1

    def run_of(self, place: Place) -> int:
        """Which run of its part a place is in."""
        return self._here.run.get(id(place.module), 0)

    def number_of(self, place: Place) -> int:
        """Which computation of this run is the next of a place."""
        return self._here.count[id(place.module)]

    def computed(self, place: Place) -> None:
        """A place has made its next computation."""
        self._here.count[id(place.module)] += 1
