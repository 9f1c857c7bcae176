"""Reads series from a table: their columns, order and times; reports gaps and all else that makes a series unusable.

The series are regular: every series has a row at each of its time steps, and a number in each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import ArgumentError
from headwise.tasks.options.forecast import ForecastOptions
from headwise.tasks.rows.labels import read_labels
from headwise.tasks.rows.sources import Table, open_table
from headwise.tasks.rows.tables import Data, as_text, as_texts, describe_cell, find_column, grouped, take_column
from headwise.tasks.rows.time_steps import Step, Times, find_step, places, read_times

TIME, SERIES, VALUE = "time", "series", "value of "  #: columns of the Data; VALUE and a column's own name
MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}  # cells without a number


@dataclass(frozen=True)
class Series:
    """The rows of one series in a table.

    Args:
        name: its name in the column of names; "" if there is only one series.
        values: float64 [T, C].
        times: the time of each row; None without times.
        rows: the indices of its rows in the table.
    """

    name: str
    values: np.ndarray
    times: Times | None
    rows: list[int]


def read_series(source: Any, options: ForecastOptions, *, least: int, columns: Sequence[str] | None = None) -> Data:
    """Read the rows of all series, one series after another, with the columns TIME, SERIES and VALUE + name.

    Args:
        source: as for `read_table`.
        least: the smallest number of rows of a series; if there are several series, shorter series are left out.
        columns: the columns to take; None = the columns that the options name, or all columns of numbers.

    Raises:
        FileError, ArgumentError: a missing file or column; cells that are not numbers; timestamps that are out of
            order, occur twice or are irregular; gaps; a series that is too short or constant.
    """
    table = source if isinstance(source, Table) else open_table(source)
    if not table.numbers:
        raise ArgumentError(f"{table.name}: there are no rows in it")
    time, times = _times(table, options)
    series = None if options.series is None else find_column(table, options.series)
    names = _targets(table, options, [time, series], columns)
    values = np.stack([_numbers(table, name) for name in names], axis=1)
    named = [""] * len(table.numbers) if series is None else as_texts(table, series, take_column(table, series))
    groups = grouped(read_labels(named))
    found, dropped = list[Series](), dict[str, list[str]]()
    for name, rows in groups.items():
        index = None if times is None else times[rows]
        each = _Reader(table, name, options).regular(Series(name, values[rows], index, rows))
        why = _unusable(each, names, least)
        if why is None:
            found.append(each)
        else:
            dropped.setdefault(why, []).append(name)
    if not found:
        whys = "; ".join(why if series is None else f"{_some(which)}: {why}" for why, which in dropped.items())
        raise ArgumentError(f"{table.name}: {whys}")
    left_out = tuple(f"{len(which)} series left out: {why} ({_some(which)})" for why, which in dropped.items())
    return _data(table, found, names, left_out)


def read_step(data: Data) -> Step | None:
    """Return the time step of the series, which must be the same in all; None without times.

    Raises:
        ArgumentError: series differ in their step.
    """
    if TIME not in data.columns:
        return None
    steps: dict[Step, str] = {}
    for name, rows in group_rows(data).items():
        step = find_step(pd.Index([data.columns[TIME][row] for row in rows]))
        if step is not None:
            steps.setdefault(step, name)
    if len(steps) > 1:
        (one, first), (other, second) = list(steps.items())[:2]
        raise ArgumentError(
            f"{data.name}: expected one time step in all series. Received: {one} in {first!r} and {other} in {second!r}"
        )
    return next(iter(steps), None)


def group_rows(data: Data) -> dict[str, list[int]]:
    """Return a dict: name of a series -> the indices of its rows, in order."""
    return grouped(data.columns.get(SERIES, [""] * len(data)))


def list_channels(data: Data) -> list[str]:
    """Return the names of the columns that hold values, without the prefix VALUE."""
    return [name.removeprefix(VALUE) for name in data.columns if name.startswith(VALUE)]


class _Reader:
    """Checks the rows of one series and fills its gaps. Its error messages name the series."""

    def __init__(self, table: Table, name: str, options: ForecastOptions) -> None:
        self.table, self.options = table, options
        self.where = f"{table.name}, series {name!r}" if name else table.name

    def regular(self, series: Series) -> Series:
        """Return the series in order, with a row at every step and a number in every cell, or raise ArgumentError."""
        if series.times is not None and len(series.rows) > 1:
            series = self._filled(self._ordered(series, series.times))
        gaps = np.isnan(series.values)
        if not gaps.any():
            return series
        if not self.options.interpolate:
            row, count = int(gaps.any(1).argmax()), int(gaps.sum())
            raise ArgumentError(
                f"{self.where}: {count} {'cell has' if count == 1 else 'cells have'} no number, the first in "
                f"{self._place(series, row)}; pass --interpolate to fill them linearly"
            )
        steps = np.arange(len(gaps))
        values = series.values.copy()
        for column, gap in zip(values.T, gaps.T, strict=True):
            if not gap.all():  # otherwise it is no series at all, which is reported elsewhere
                column[gap] = np.interp(steps[gap], steps[~gap], column[~gap])
        return replace(series, values=values)

    def _ordered(self, series: Series, times: Times) -> Series:
        """Sort the rows of the series by time. Raises ArgumentError if they need it without the option `sort`."""
        if not times.is_monotonic_increasing:
            if not self.options.sort:
                row = int(np.argmax(times[1:] < times[:-1])) + 1
                raise ArgumentError(
                    f"{self.where}: timestamps are out of order: {self._place(series, row)} has {times[row]} after "
                    f"{times[row - 1]}; pass --sort to sort them"
                )
            order = times.argsort(kind="stable")
            times = times[order]
            series = Series(series.name, series.values[order], times, [series.rows[i] for i in order])
        if not times.is_unique:
            row = int(times.duplicated().argmax())
            hint = "" if self.options.series else "; if they are of several series, name their column with --series"
            raise ArgumentError(
                f"{self.where}: timestamp {times[row]} comes twice, in {self._place(series, row - 1)} and "
                f"{self._place(series, row)}{hint}"
            )
        return series

    def _filled(self, series: Series) -> Series:
        """Add a row of NaN for each step that is missing. Raises ArgumentError without the option `interpolate`."""
        assert series.times is not None
        step = find_step(series.times)
        if step is None:
            differences = pd.Series(series.times).diff()[1:]
            usual = differences.mode()[0]
            row = int((differences != usual).to_numpy().argmax()) + 1
            raise ArgumentError(
                f"{self.where}: the time step is irregular: {self._place(series, row)} has {series.times[row]} after "
                f"{series.times[row - 1]}, most steps are {usual}; bring them to one step first, or say "
                "--time none to count rows"
            )
        place = places(series.times, step)
        missing = int(place[-1]) + 1 - len(place)
        if not missing:
            return series
        if not self.options.interpolate:
            row = int((np.diff(place) > 1).argmax()) + 1
            raise ArgumentError(
                f"{self.where}: {missing} rows are missing, the first before {self._place(series, row)}: "
                f"{series.times[row]} comes after {series.times[row - 1]}, and the step is {step}; pass --interpolate "
                "to fill them, or --time none to count rows"
            )
        values = np.full((place[-1] + 1, series.values.shape[1]), np.nan)
        values[place] = series.values
        known = np.searchsorted(place, np.arange(len(values)), side="right") - 1  # the row before, in gaps
        rows = [series.rows[i] for i in known]
        return Series(series.name, values, step.between(series.times[0], series.times[-1]), rows)

    def _place(self, series: Series, row: int) -> str:
        return f"{self.table.unit} {self.table.numbers[series.rows[row]]}"


def _times(table: Table, options: ForecastOptions) -> tuple[str | None, Times | None]:
    """Find the column of timestamps: the requested one, or the first with only timestamps. Returns (name, times)."""
    if options.time == "none" and "none" not in table.columns:
        return None, None
    if options.time is not None:
        name = find_column(table, options.time)
        cells = take_column(table, name)
        times = read_times(cells)
        if times is None:
            row = next((row for row, cell in enumerate(cells) if read_times([cell]) is None), 0)
            raise ArgumentError(
                f"{table.name}: column {name!r} holds {describe_cell(cells[row])} in {table.unit} "
                f"{table.numbers[row]}, expected timestamps such as 2024-01-31 18:00"
            )
        return name, times
    for name, cells in table.columns.items():
        if name == options.series or name in options.target or _is_number(cells[0]):
            continue
        # The first cell is cheap to read, and distinguishes most text columns from timestamps.
        if read_times(cells[:1]) is not None and (times := read_times(cells)) is not None:
            return name, times
    return None, None


def _targets(
    table: Table, options: ForecastOptions, others: Sequence[str | None], columns: Sequence[str] | None
) -> list[str]:
    """Return the names of the columns to forecast: the requested ones, or all columns of numbers."""
    wanted = columns if columns is not None else options.target
    if wanted:
        return [find_column(table, name) for name in wanted]
    names = [name for name in table.columns if name not in others]
    found = [name for name in names if _is_numeric(table.columns[name])]
    if not found:
        raise ArgumentError(
            f"{table.name}: no column holds only numbers; there are {_some(names)}; name those to forecast with "
            "--target to hear what is wrong with them"
        )
    return found


def _numbers(table: Table, name: str) -> np.ndarray:
    """Convert a column to float64 [T], with NaN for an empty cell."""
    cells = take_column(table, name)
    found = np.empty(len(cells))
    for row, cell in enumerate(cells):
        number = _number(cell)
        if number is None or np.isinf(number):
            raise ArgumentError(
                f"{table.name}: column {name!r} holds {describe_cell(cell)} in {table.unit} {table.numbers[row]}, "
                "expected a number"
            )
        found[row] = number
    return found


def _number(cell: Any) -> float | None:
    """Convert a cell to a number: NaN if the cell is empty, None if it is not a number."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan if not isinstance(cell, list | dict) and as_text(cell).strip().lower() in MISSING else None


def _is_number(cell: Any) -> bool:
    number = _number(cell)
    return number is not None and not np.isnan(number)


def _is_numeric(cells: Sequence[Any]) -> bool:
    return any(map(_is_number, cells)) and all(_number(cell) is not None for cell in cells)


def _unusable(series: Series, names: Sequence[str], least: int) -> str | None:
    """Return the reason why nothing can be learned from a series; None if it can be used."""
    if len(series.values) < least:
        return f"expected at least {least} rows. Received: {len(series.values)}; choose a smaller context or horizon"
    empty = np.isnan(series.values).all(0)
    if empty.any():
        return f"column {names[int(empty.argmax())]!r} has no numbers"
    return None


def _data(table: Table, found: Sequence[Series], names: Sequence[str], left_out: tuple[str, ...]) -> Data:
    columns: dict[str, list[Any]] = {}
    if any(each.name for each in found) or len(found) > 1:
        columns[SERIES] = [each.name for each in found for _ in each.rows]
    if all(each.times is not None for each in found):
        columns[TIME] = [time for each in found if each.times is not None for time in each.times.tolist()]
    values = np.concatenate([each.values for each in found])
    columns |= {VALUE + name: column.tolist() for name, column in zip(names, values.T, strict=True)}
    numbers = [table.numbers[row] for each in found for row in each.rows]
    return Data(table.name, columns, numbers, (*table.notes, *left_out), table.fingerprint, table.unit)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
