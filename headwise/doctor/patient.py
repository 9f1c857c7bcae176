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
from headwise.language import Sentence, join, sentence_of


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
            self.anatomy_problem = sentence_of(problem)
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
            lines += [
                Sentence("{told} (seen {count} times)").format(told=x, count=told.count(x)) if told.count(x) > 1 else x
                for x in dict.fromkeys(told)
            ]
        return tuple(lines)

    def evidence(self) -> str:
        """What the diagnosis rests on, in a sentence; "" if it ended before its operations were looked at."""
        backend = foreign_backend(self.module)
        if backend:
            return Sentence(
                "examined on {backend} by behaviour and gradients; its operations are not visible to torch"
            ).format(backend=backend)
        if "anatomy" not in self.__dict__:
            return ""
        if self.anatomy is None:
            return Sentence(
                "examined by behaviour and gradients; its operations could not be traced: {anatomy_problem}"
            ).format(anatomy_problem=self.anatomy_problem)
        return ALL_EVIDENCE


def _summed_up(site: Site, twin: Site | None) -> str:
    if site.grid is None:
        return Sentence("softmax at {where}: the layout of its scores is not that of attention").format(
            where=site.softmax.where
        )
    heads, width = len(site.grid.heads), site.q.shape[-1]
    shared = len(set(site.grid.key_heads.tolist()))
    parts: list[str] = [
        Sentence("{heads} head{s} of width {width}").format(heads=heads, s="s" * (heads > 1), width=width)
    ]
    if 0 < shared < heads:
        parts.append(Sentence("{heads} of keys and values").format(heads=shared))
    if twin is not None and twin.grid is not None and twin.scores.shape == site.scores.shape:
        factor = measure(site, twin)
        if factor is not None:
            usual = f" = 1/sqrt({width})" if abs(factor * width**0.5 - 1) < 2e-3 else ""
            parts.append(Sentence("scores times {factor:.4f}{usual}").format(factor=factor, usual=usual))
    if site.softmax.by_hand:
        parts.append("softmax computed from basic operations")
    return Sentence("attention at {where}: {parts}").format(where=site.softmax.where, parts=join(parts))
