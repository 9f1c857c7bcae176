"""Statistics computed during an attention call: how `headwise.watch` keeps them, and how a record looks them up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor

from headwise.errors import ArgumentError, RecordError, brief
from headwise.records.statistics import STATISTICS, Statistic, list_options, make
from headwise.records.statistics.lse import LogSumExp
from headwise.records.statistics.statistic import mapped

#: Statistics and their answers; None = the statistic is not known, because the steps of a generation do not give it.
Computed = tuple[tuple[Statistic, Any], ...]

Names = str | Collection[str] | Mapping[str, Mapping[str, Any]]


def named(names: Names) -> list[Statistic]:
    """Make the statistics that `watch(statistics=)` names, and `lse`, which every pass gives; [] if it names none.

    Raises ArgumentError for a name or an option that does not exist, and for a value that an option cannot have.
    """
    if isinstance(names, str):
        names = tuple(STATISTICS) if names == "all" else (names,)
    if not isinstance(names, Collection):
        raise ArgumentError(f'statistics: expected names, a dict of names and options, or "all". Received: {names!r}')
    if not names:
        return []
    options = names if isinstance(names, Mapping) else {name: {} for name in names}
    found = make({*options, LogSumExp.name}, {})
    for i, each in enumerate(found):
        given = options.get(each.name, {})
        if not isinstance(given, Mapping) or not given.keys() <= list_options(type(each)):
            expected = ", ".join(sorted(list_options(type(each)))) or "none"
            raise ArgumentError(
                f"statistics: the options of {each.name} are {expected}, as a dict. "
                f"Received: {each.name!r}: {brief(given)}"
            )
        found[i] = type(each)(**given)
    return found


def look_up(computed: Computed, asked: Iterable[Statistic]) -> dict[str, Any]:
    """Return the requested statistics that were computed, by name. They are copies, safe to write to."""
    answers = {}
    for each in asked:
        for known, answer in computed:
            found = None if answer is None or type(known) is not type(each) else each.found_in(known, answer)
            if found is not None:
                answers[each.name] = mapped(Tensor.clone, found)
    return answers


def not_known(computed: Computed, missing: Iterable[Statistic], where: str) -> RecordError:
    """Make the error that says why these statistics of a layer are not known, and what to do."""
    known = {each.name: each for each, answer in computed if answer is not None}
    reasons = []
    for each in missing:
        if each.name in known:
            reasons.append(f"{each.name} was computed with {_said(known[each.name])}, not {_said(each)}")
        elif any(each.name == other.name for other, _ in computed):
            reasons.append(f"{each.name} of a generation does not follow from its steps")
        else:
            reasons.append(f"{each.name} was not computed during the run")
    return RecordError(
        f"{where}: {', '.join(reasons)}. Name what you need in statistics= of headwise.watch, or keep the queries and "
        f"keys, from which everything follows (keep=True). Known: {', '.join(known)}"
    )


def _said(statistic: Statistic) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in vars(statistic).items())
