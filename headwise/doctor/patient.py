"""The module under examination, with all that is known of it: what it computes, and what reproduces it.

Each fact is computed once, when a check first needs it, on a copy in eval mode.
"""

from __future__ import annotations

import functools

from headwise.doctor.contract import Contract, read_contract
from headwise.doctor.finding import ALL_EVIDENCE
from headwise.doctor.finding import NotApplicable as NotApplicable
from headwise.doctor.finding import NotChecked as NotChecked
from headwise.doctor.probing.reached import Reached, reached
from headwise.doctor.reading.anatomy import Anatomy, NoAttention, NoSoftmax, Unreadable, dissect
from headwise.doctor.reading.scale import measure
from headwise.doctor.reading.site import Site
from headwise.doctor.subject import Subject, foreign_backend


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

    def understood(self) -> tuple[str, ...]:
        """A line each: how it is called, its masks, its heads, and each attention found."""
        anatomy = self.anatomy
        lines = self.interface.describe(heads=anatomy is None or all(site.grid is None for site in anatomy.sites))
        if anatomy is not None:
            twins = anatomy.again or (None,) * len(anatomy.sites)
            told = [_summed_up(site, twin) for site, twin in zip(anatomy.sites, twins, strict=True)]
            lines += [f"{x} (seen {told.count(x)} times)" if told.count(x) > 1 else x for x in dict.fromkeys(told)]
        return tuple(lines)

    def evidence(self) -> str:
        """What the diagnosis rests on, in a sentence; "" if it ended before its operations were looked at."""
        backend = foreign_backend(self.module)
        if backend:
            return f"examined on {backend} by behaviour and gradients; its operations are not visible to torch"
        if "anatomy" not in self.__dict__:
            return ""
        if self.anatomy is None:
            return f"examined by behaviour and gradients; its operations could not be traced: {self.anatomy_problem}"
        return ALL_EVIDENCE


def _summed_up(site: Site, twin: Site | None) -> str:
    if site.grid is None:
        return f"softmax at {site.softmax.where}: the layout of its scores is not that of attention"
    heads, width = len(site.grid.heads), site.q.shape[-1]
    shared = len(set(site.grid.key_heads.tolist()))
    parts = [f"{heads} head{'s' if heads > 1 else ''} of width {width}"]
    if 0 < shared < heads:
        parts.append(f"{shared} of keys and values")
    if twin is not None and twin.grid is not None and twin.scores.shape == site.scores.shape:
        factor = measure(site, twin)
        if factor is not None:
            usual = f" = 1/sqrt({width})" if abs(factor * width**0.5 - 1) < 2e-3 else ""
            parts.append(f"scores times {factor:.4f}{usual}")
    if site.softmax.by_hand:
        parts.append("softmax computed from basic operations")
    return f"attention at {site.softmax.where}: {', '.join(parts)}"
