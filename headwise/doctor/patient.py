"""The module under examination, with all that is known of it: what it computes, and what reproduces it.

Each fact is computed once, when a check first needs it, on a copy in eval mode.
"""

from __future__ import annotations

import functools

from headwise.doctor.contract import Contract, read_contract
from headwise.doctor.not_checked import NotApplicable as NotApplicable
from headwise.doctor.not_checked import NotChecked as NotChecked
from headwise.doctor.probing.reached import Reached, reached
from headwise.doctor.reading.anatomy import Anatomy, NoAttention, NoSoftmax, Unreadable, dissect
from headwise.doctor.subject import Subject


class Patient(Subject):
    """A module and what has been found out about it."""

    anatomy_problem = ""
    has_attention = True  # until `anatomy` finds that there is none
    _without_softmax = False

    @functools.cached_property
    def excused(self) -> set[str]:
        """Findings that a check examined and dismissed with a reason."""
        return set()

    @functools.cached_property
    def contract(self) -> Contract:
        """What it says of itself, each statement with its source."""
        return read_contract(self)

    @functools.cached_property
    def anatomy(self) -> Anatomy | None:
        """The attention found in the traced operations; None if there is none, and `anatomy_problem` says why."""
        try:
            return dissect(self)
        except Unreadable as problem:
            self.anatomy_problem = str(problem)
            self.has_attention = not isinstance(problem, NoAttention)
            self._without_softmax = isinstance(problem, NoSoftmax)
            return None

    @property
    def has_softmax(self) -> bool:
        """Whether there is a softmax, or its operations could not be traced."""
        return self.anatomy is not None or not self._without_softmax

    @functools.cached_property
    def reached(self) -> Reached:
        """Which parameters a gradient reaches."""
        return reached(self)

    def see(self) -> Anatomy:
        """The anatomy; raises NotChecked if there is none."""
        if self.anatomy is None:
            raise NotChecked(self.anatomy_problem)
        return self.anatomy
