"""The time step of a series: finds it from the timestamps, counts rows by it, and continues the times into the future.

A step is a fixed time (an hour, 15 minutes), some months (a month, a quarter, a year), a business day, or a number if
the times are plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

Unit = Literal["second", "month", "month's end", "business day", "number"]
Times: TypeAlias = pd.Index  # a DatetimeIndex, or an index of numbers

_DAY = 24 * 60 * 60
_SEASONS = {  # (unit, size) -> steps in a season
    ("second", 1): 60,
    ("second", _DAY): 7,
    ("second", 7 * _DAY): 52,
    ("business day", 1): 5,
    ("month", 1): 12,
    ("month", 3): 4,
    ("month's end", 1): 12,
    ("month's end", 3): 4,
}
_NAMES = {_DAY: "day", 60 * 60: "hour", 60: "minute", 1: "second"}


@dataclass(frozen=True)
class Step:
    """The time from one row of a series to the next: a number of units, such as months.

    >>> step = find_step(pd.DatetimeIndex(["2024-01-31", "2024-02-29", "2024-03-31"]))
    >>> str(step), step.season, step.after(pd.Timestamp("2024-03-31"), 1)[0]
    ('1 month', 12, Timestamp('2024-04-30 00:00:00'))
    """

    unit: Unit
    size: float

    def __str__(self) -> str:
        size, name = self.size, self.unit.removesuffix("'s end")
        if self.unit == "second":
            least = next((each for each in _NAMES if size % each == 0), 1)
            size, name = size / least, _NAMES[least]
        return f"{size:g}" if self.unit == "number" else f"{size:g} {name}{'' if size == 1 else 's'}"

    @property
    def season(self) -> int:
        """The usual number of steps in a season: hours in a day, days in a week, months in a year; otherwise 1."""
        known = _SEASONS.get((self.unit, int(self.size)))
        if known is None and self.unit == "second" and self.size < _DAY and _DAY % self.size == 0:
            known = int(_DAY // self.size)
        return known or 1

    def after(self, last: Any, count: int) -> list[Any]:
        """Return the next `count` times after `last`."""
        ahead = np.arange(1, count + 1)
        if self.unit == "number":
            size = int(self.size) if self.size.is_integer() else self.size
            return [last + size * int(n) for n in ahead]
        return _shifted(last, self, ahead)

    def between(self, first: Any, last: Any) -> Times:
        """Return all times from `first` to `last`, both included."""
        count = round(float(_ordinals(pd.Index([first, last]), self.unit)[1:].item() / self.size))
        return pd.Index([first, *self.after(first, count)])


def find_step(times: Times) -> Step | None:
    """Find the step between ascending times, of which some may be missing; None if no step fits all times."""
    if len(times) < 2:
        return None
    gaps: list[Step] = []
    for unit in _units(times):
        differences = np.diff(_ordinals(times, unit))
        sizes, counts = np.unique(differences, return_counts=True)
        size = sizes[counts.argmax()]
        if len(sizes) == 1:
            return Step(unit, float(size))
        if size > 0 and np.allclose(differences / size, np.round(differences / size), rtol=0, atol=1e-6):
            gaps.append(Step(unit, float(size)))
    return gaps[0] if gaps else None


def places(times: Times, step: Step) -> np.ndarray:
    """Return for each time the number of steps since the first time, int64."""
    return np.round(_ordinals(times, step.unit) / step.size).astype(np.int64)


def _units(times: Times) -> list[Unit]:
    """Return the units in which these times may be counted, the most specific unit first."""
    if not isinstance(times, pd.DatetimeIndex):
        return ["number"]
    clock = times - times.normalize()
    if (clock == clock[0]).all():
        if (times.day == times.day[0]).all():
            return ["month", "second"]
        if times.is_month_end.all():
            return ["month's end", "second"]
        if len(times) > 5 and (times.day_of_week < 5).all():  # up to five days in a row may be followed by a Saturday
            return ["business day", "second"]
    return ["second"]


def _ordinals(times: Times, unit: Unit) -> np.ndarray:
    """Convert times to numbers of units since the first time."""
    if unit == "number":
        return np.asarray(times, dtype=np.float64) - float(times[0])
    if unit == "second":
        return ((times - times[0]) / pd.Timedelta(seconds=1)).to_numpy()
    if unit.startswith("month"):
        months = np.asarray(times.year * 12 + times.month)
        return (months - months[0]).astype(np.float64)
    days = times.tz_localize(None).to_numpy().astype("datetime64[D]")
    return np.busday_count(days[0], days).astype(np.float64)


def _shifted(last: pd.Timestamp, step: Step, ahead: np.ndarray) -> list[pd.Timestamp]:
    if step.unit == "second":
        return [last + pd.Timedelta(seconds=step.size) * int(n) for n in ahead]
    offset = {"month": pd.DateOffset(months=1), "month's end": pd.offsets.MonthEnd(), "business day": pd.offsets.BDay()}
    return [last + offset[step.unit] * int(step.size * n) for n in ahead]
