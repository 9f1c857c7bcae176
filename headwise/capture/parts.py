"""`Parts`: the parts (modules or Keras layers) of a watched or edited model, and how often each of them runs."""

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
    """The number of the current run of each part (a module or a layer) in this thread, and its computations so far."""

    def __init__(self) -> None:
        self.run: dict[int, int] = {}  # id of a part -> the number of its run
        self.count: Counter[int] = Counter()  # id of a part -> the computations of this run so far
        self.before: dict[int, int] = {}  # id of a part -> how often it had run when the model began
        # Passes for which functions are listened to again: how many ran inside one another, and the context to end.
        self.brought: list[tuple[int, contextlib.ExitStack]] = []


class Parts(abc.ABC):
    """The parts of a model (modules or Keras layers). Counts how often each runs, and the attentions of each run."""

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
        """Return the innermost part that is running; None if no part runs, or if it reports its attention itself."""

    @abc.abstractmethod
    def notes(self) -> Iterable[str]:
        """Return notes on how the parts run differently while the model is watched or edited."""

    @abc.abstractmethod
    def closed(self, known: Set[str]) -> Iterable[CallSite]:
        """Yield call sites for parts inside which nothing can be seen. `known`: paths with a known outcome."""

    def listening(self, missed: Callable[[str], object]) -> contextlib.AbstractContextManager[None]:
        """Return a context that notices runs of parts; `missed` is called with the path of one that runs unfollowed."""
        return contextlib.nullcontext()

    def is_outside(self) -> bool:
        """Whether no part of the model runs at all; asked when `place` returns None."""
        return True

    def began(self, part: int) -> None:
        """Note that a run of the part with this id begins."""
        self.ran = True
        self._here.run[part] = self._runs[part]
        self._here.count[part] = 0
        self._runs[part] += 1

    def find_run(self, place: Place) -> int:
        """Return the number of the current run of the part at `place` (a running module or layer); 0 = its first."""
        return self._here.run.get(id(place.module), 0)

    def find_number(self, place: Place) -> int:
        """Return the number that the next attention of the part at `place` gets in this run; 0 = the run's first."""
        return self._here.count[id(place.module)]

    def computed(self, place: Place) -> None:
        """Count one attention that the part at `place` (a running module or layer) has computed in this run."""
        self._here.count[id(place.module)] += 1
