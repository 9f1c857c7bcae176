"""The statistics of attention weights, in the list `STATISTICS`.

The record, the summary of heads, `headwise stats` and the HTML page use the statistics in this list. `register` adds a
statistic; see `Statistic`.

Three names sound alike. The *learned sink* is a logit that takes part in the softmax of a head (`sinks=` of
`headwise.attention`), and "learned_sink" is its weight. "first_visible" is the weight on the first key that any query
may attend to. `headwise.analyses.key_zero_rate` is the share of heads that put much of their weight on key 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from headwise.errors import ArgumentError, brief
from headwise.records.statistics.compute import Statistics, compute
from headwise.records.statistics.distance import Distance
from headwise.records.statistics.entropy import Entropy
from headwise.records.statistics.first_visible import FirstVisible
from headwise.records.statistics.keys_needed import KeysNeeded
from headwise.records.statistics.learned_sink import LearnedSink
from headwise.records.statistics.lse import LogSumExp
from headwise.records.statistics.offset_mass import OffsetMass
from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.pooled import PooledMax, PooledMean
from headwise.records.statistics.received import Received
from headwise.records.statistics.statistic import Column, Statistic
from headwise.records.statistics.top import Top

#: Every statistic by its name, in the order in which the summary and the page show them.
STATISTICS: dict[str, type[Statistic]] = {
    each.name: each
    for each in (
        LogSumExp,
        Entropy,
        Distance,
        OffsetMass,
        FirstVisible,
        LearnedSink,
        KeysNeeded,
        Top,
        PooledMean,  # before Received, which uses its sums
        PooledMax,
        Received,
    )
}

S = TypeVar("S", bound=type[Statistic])


def register(statistic: S) -> S:
    """Add a class to `STATISTICS`; usable as a decorator. ArgumentError if its name is taken or is no identifier."""
    name, overwrites = statistic.name, statistic.overwrites
    if not name.isidentifier() or name in STATISTICS:
        raise ArgumentError(f"register: the name of a statistic must be a new identifier. Received: name={name!r}")
    if overwrites and any(each.overwrites == overwrites for each in STATISTICS.values()):
        raise ArgumentError(
            f"register: only one statistic can overwrite the {overwrites}, and there is one. Copy them instead. "
            f"Received: overwrites={overwrites!r}"
        )
    STATISTICS[name] = statistic
    return statistic


def make(names: Collection[str], options: Mapping[str, Any]) -> list[Statistic]:
    """Make the statistics with these names, in the order of `STATISTICS`. Each gets the options that belong to it.

    Raises ArgumentError for a name or an option that does not exist, and for a value that an option cannot have.
    """
    if unknown := [name for name in names if name not in STATISTICS]:
        raise ArgumentError(f"statistics: the names are {', '.join(STATISTICS)}. Received: names={unknown}")
    known = set[str]().union(*map(list_options, STATISTICS.values()))
    if unknown := [f"{option}={brief(value)}" for option, value in options.items() if option not in known]:
        raise ArgumentError(
            f"statistics: the options are rows, {', '.join(sorted(known))}. Received: {', '.join(unknown)}"
        )
    made = {}
    for name, statistic in STATISTICS.items():
        own = {option: value for option, value in options.items() if option in list_options(statistic)}
        if own or name in names:  # values are also checked for statistics that are not requested
            made[name] = statistic(**own)
    return [made[name] for name in made if name in names]


def list_options(statistic: type[Statistic]) -> set[str]:
    """Return the names of the options of a statistic."""
    return {field.name for field in dataclasses.fields(statistic)} if dataclasses.is_dataclass(statistic) else set()


def columns() -> dict[type[Statistic], Column]:
    """Return the statistics that give one number for each head, each with its `Column`, its empty fields filled."""
    found = {}
    for statistic in STATISTICS.values():
        if (column := statistic.column) is not None:
            name = column.name or statistic.name
            found[statistic] = dataclasses.replace(
                column,
                name=name,
                title=column.title or name.replace("_", " "),
                unit=column.unit or statistic.unit,
                sentence=column.sentence or statistic.sentence,
            )
    return found


__all__ = [
    "STATISTICS",
    "Column",
    "Distance",
    "Entropy",
    "FirstVisible",
    "KeysNeeded",
    "LearnedSink",
    "LogSumExp",
    "OffsetMass",
    "PooledMax",
    "PooledMean",
    "Received",
    "Statistic",
    "Statistics",
    "Top",
    "WeightTile",
    "columns",
    "compute",
    "make",
    "register",
]


def __dir__() -> list[str]:
    return __all__
