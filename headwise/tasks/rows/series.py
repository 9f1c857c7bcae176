"""Reads series from a table: their columns, order and times; reports gaps and all else that makes a series unusable.

The series are regular: every series has a row at each of its time steps, and a number in each column.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import ArgumentError
from headwise.language import Sentence, join
from headwise.tasks.options.forecast import ForecastOptions
from headwise.tasks.rows.labels import read_labels
from headwise.tasks.rows.sources import Table, open_table
from headwise.tasks.rows.tables import Data, as_text, as_texts, describe_cell, find_column, grouped, take_column
from headwise.tasks.rows.time_formats import NUMBERS, find_count, read_times, suggest_format
from headwise.tasks.rows.time_steps import Step, Times, find_step, places

TIME, SERIES, VALUE = "time", "series", "value of "  #: columns of the Data; VALUE and a column's own name
MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}  # cells without a number
_ADVICE = {
    True: Sentence("pass"),
    False: Sentence("train again with"),
}  # before an option; whether it is the training that reads


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


@dataclass(frozen=True)
class SeriesData(Data):
    """The rows of all series, and the options `time` and `time_format` by which their times are read again."""

    time: str = "none"
    time_format: str | None = None


def read_series(source: Any, options: ForecastOptions, *, least: int, columns: Sequence[str] | None = None) -> Data:
    """Read the rows of all series, one series after another, with the columns TIME, SERIES and VALUE + name.

    Args:
        source: as for `read_table`.
        least: the smallest number of rows of a series; if there are several series, shorter series are left out.
        columns: the columns to take after training; None = to train, those of the options, or all columns of numbers.

    Raises:
        FileError, ArgumentError: a missing file or column; cells that are not numbers; timestamps of no or several
            formats, out of order, irregular or twice; a count of rows that may be the time; gaps; a series that is too
            short or constant.
    """
    table = source if isinstance(source, Table) else open_table(source)
    if not table.numbers:
        raise ArgumentError("{name}: there are no rows in it", name=table.name)
    training = columns is None
    time, written, times = _find_time(table, options, training)
    series = None if options.series is None else find_column(table, options.series)
    named = [""] * len(table.numbers) if series is None else as_texts(table, series, take_column(table, series))
    groups = grouped(read_labels(named))
    names = _find_targets(table, options, time, groups.values()) if columns is None else columns
    values = np.stack([_numbers(table, find_column(table, name)) for name in names], axis=1)
    found, dropped = list[Series](), dict[str, list[str]]()
    for name, rows in groups.items():
        index = None if times is None else times[rows]
        each = _Reader(table, name, options, training).regular(Series(name, values[rows], index, rows))
        why = _unusable(each, names, least)
        if why is None:
            found.append(each)
        else:
            dropped.setdefault(why, []).append(name)
    if not found:
        of = [why if series is None else join([_some(which), why], ": ") for why, which in dropped.items()]
        raise ArgumentError("{name}: {whys}", name=table.name, whys=join(of, "; "))
    left_out = tuple(
        Sentence("{count} series left out: {why} ({names})").format(count=len(which), why=why, names=_some(which))
        for why, which in dropped.items()
    )
    if training:
        unused = ", ".join(repr(name) for name in table.columns if name not in (time, series, *names))
        how = Sentence(
            "columns of {name}: time: {time}; series: {series}; forecast: {targets}; not used: {unused}"
        ).format(
            name=table.name,
            time=f"{time!r} ({written})" if time else "none, rows are counted",
            series=series or Sentence("none"),
            targets=", ".join(map(repr, names)),
            unused=unused or Sentence("none"),
        )
        left_out = (how, *left_out)
    data = _data(table, found, names, left_out)
    return replace(data, time=time or "none", time_format=None if written == NUMBERS else written)


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
            "{name}: expected one time step in all series. Received: {one} in {first!r} and {other} in {second!r}",
            name=data.name,
            one=one,
            first=first,
            other=other,
            second=second,
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

    def __init__(self, table: Table, name: str, options: ForecastOptions, training: bool) -> None:
        self.table, self.options, self.advise = table, options, _ADVICE[training]
        where = Sentence("{table}, series {name!r}").format(table=table.name, name=name)
        self.where = where if name else table.name

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
                "{where}: {count} cell{s} no number, the first in {place}; {advise} --interpolate to fill them "
                "linearly",
                where=self.where,
                count=count,
                s=" has" if count == 1 else "s have",
                place=self._place(series, row),
                advise=self.advise,
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
                    "{where}: timestamps are out of order: {place} has {time} after {before}; {advise} --sort to "
                    "sort them",
                    where=self.where,
                    place=self._place(series, row),
                    time=times[row],
                    before=times[row - 1],
                    advise=self.advise,
                )
            order = times.argsort(kind="stable")
            times = times[order]
            series = Series(series.name, series.values[order], times, [series.rows[i] for i in order])
        if not times.is_unique:
            row = int(times.duplicated().argmax())
            several = Sentence("; if they are of several series, {advise} --series COLUMN").format(advise=self.advise)
            hint = "" if self.options.series else several
            raise ArgumentError(
                "{where}: timestamp {time} comes twice, in {place} and {second}{hint}",
                where=self.where,
                time=times[row],
                place=self._place(series, row - 1),
                second=self._place(series, row),
                hint=hint,
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
                "{where}: the time step is irregular: {place} has {time} after {before}, most steps are {usual}; "
                "bring them to one step first, or {advise} --time none to count rows",
                where=self.where,
                place=self._place(series, row),
                time=series.times[row],
                before=series.times[row - 1],
                usual=usual,
                advise=self.advise,
            )
        place = places(series.times, step)
        missing = int(place[-1]) + 1 - len(place)
        if not missing:
            return series
        if not self.options.interpolate:
            row = int((np.diff(place) > 1).argmax()) + 1
            written = suggest_format(series.times) if step.unit == "number" else None
            dates = Sentence("; if they are dates, {advise} --time-format {written}")
            hint = dates.format(advise=self.advise, written=written) if written else ""
            raise ArgumentError(
                "{where}: {missing} row{s} missing, the first before {place}: {time} comes after {before}, and "
                "the step is {step}; {advise} --interpolate to fill them, or --time none to count rows{hint}",
                where=self.where,
                missing=missing,
                s=" is" if missing == 1 else "s are",
                place=self._place(series, row),
                time=series.times[row],
                before=series.times[row - 1],
                step=step,
                advise=self.advise,
                hint=hint,
            )
        values = np.full((place[-1] + 1, series.values.shape[1]), np.nan)
        values[place] = series.values
        known = np.searchsorted(place, np.arange(len(values)), side="right") - 1  # the row before, in gaps
        rows = [series.rows[i] for i in known]
        return Series(series.name, values, step.between(series.times[0], series.times[-1]), rows)

    def _place(self, series: Series, row: int) -> Sentence:
        return Sentence("{unit} {number}").format(
            unit=Sentence(self.table.unit), number=self.table.numbers[series.rows[row]]
        )


def _find_time(table: Table, options: ForecastOptions, training: bool) -> tuple[str | None, str | None, Times | None]:
    """Find the column of times: the requested one, or the first with only times. Returns (name, format, times).

    After training, it is the column of the training if there is one, in the format of the training if that fits.
    """
    if options.time == "none" and "none" not in table.columns:
        return None, None, None
    named = options.time is not None and (training or options.time in table.columns)
    names = [find_column(table, str(options.time))] if named else _list_others(table, options)
    read = {name: read_times(take_column(table, name), options.time_format, only=training) for name in names}
    read = {name: found for name, found in read.items() if named or (found and NUMBERS not in found)}
    for name, found in read.items():
        (written, times), *others = list(found.items()) or [("", pd.Index([None]))]
        if times.notna().all() and not others:
            return name, written, times
    for name, found in read.items():
        if named or next(iter(found.values())).notna().mean() >= 0.5:
            raise ArgumentError(_explain_times(table, name, found, options.time_format, training))
    return None, None, None


def _explain_times(table: Table, name: str, found: dict[str, Times], wanted: str | None, training: bool) -> Sentence:
    """Say why a column is not read as times, in the formats that fit most of its cells."""
    cells, several = take_column(table, name), list(found.items())[:2]
    fits = several[0][1].notna() if several else np.zeros(len(cells), bool)
    if fits.all():
        row, how = int(np.argmax(several[0][1] != several[1][1])), Sentence("all its cells fit both")
        what = join((f"{times[row].date()} ({written})" for written, times in several), " or ")
    else:
        row, how = int(np.argmin(fits)), Sentence("correct or remove that {unit}").format(unit=Sentence(table.unit))
        example = as_text(cells[int(np.argmax(fits))]) if several else wanted or "2024-01-31 18:00"
        what = Sentence("timestamps such as {example}").format(example=example)
    return Sentence(
        "{name}: column {column!r} holds {cell} in {unit} {number}, expected {what}; {how}, {advise} --time {time} "
        "--time-format FORMAT, or --time none"
    ).format(
        name=table.name,
        column=name,
        cell=describe_cell(cells[row]),
        unit=Sentence(table.unit),
        number=table.numbers[row],
        what=what,
        how=how,
        advise=_ADVICE[training],
        time=shlex.quote(name),
    )


def _list_others(table: Table, options: ForecastOptions) -> list[str]:
    return [name for name in table.columns if name != options.series and name not in options.target]


def _find_targets(table: Table, options: ForecastOptions, time: str | None, groups: Iterable[Any]) -> Sequence[str]:
    """Return the names of the columns to forecast: the requested ones, or all columns of numbers but counts of rows."""
    others = [name for name in _list_others(table, options) if name != time]
    numeric = options.target or [name for name in others if _is_numeric(table.columns[name])]
    if not numeric:
        raise ArgumentError(
            "{name}: no column holds only numbers; there are {others}; name those to forecast with --target "
            "to hear what is wrong with them",
            name=table.name,
            others=_some(others),
        )
    if options.target and (time or options.time):
        return numeric
    read = {name: read_times(table.columns[name]).get(NUMBERS) for name in others}
    counts = {name: step for name, each in read.items() if each is not None and (step := find_count(each, groups))}
    found = [name for name in numeric if name not in counts]
    if found and counts and options.time is None:
        name, step = next(iter(counts.items()))
        written = suggest_format(read_times(table.columns[name])[NUMBERS])
        how = f"--time {shlex.quote(name)}{f' --time-format {written}' if written else ''}{' --sort' * (step < 0)}"
        raise ArgumentError(
            "{name}: column {column!r} counts rows, mostly by {step:g}, as times do; expected --time. Pass "
            "{how} if it holds the times; otherwise --time none or another column, and --target {target} to "
            "forecast it",
            name=table.name,
            column=name,
            step=step,
            how=how,
            target=shlex.quote(name),
        )
    return found or numeric  # a count alone is what there is to forecast


def _numbers(table: Table, name: str) -> np.ndarray:
    """Convert a column to float64 [T], with NaN for an empty cell."""
    cells = take_column(table, name)
    found = np.empty(len(cells))
    for row, cell in enumerate(cells):
        number = _number(cell)
        if number is None or np.isinf(number):
            raise ArgumentError(
                "{name}: column {column!r} holds {cell} in {unit} {number}, expected a number",
                name=table.name,
                column=name,
                cell=describe_cell(cell),
                unit=Sentence(table.unit),
                number=table.numbers[row],
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
        told = "expected at least {least} rows. Received: {count}; choose a smaller context or horizon"
        return Sentence(told).format(least=least, count=len(series.values))
    empty = np.isnan(series.values).all(0)
    if empty.any():
        return Sentence("column {column!r} has no numbers").format(column=names[int(empty.argmax())])
    return None


def _data(table: Table, found: Sequence[Series], names: Sequence[str], left_out: tuple[str, ...]) -> SeriesData:
    columns: dict[str, list[Any]] = {}
    if any(each.name for each in found) or len(found) > 1:
        columns[SERIES] = [each.name for each in found for _ in each.rows]
    if all(each.times is not None for each in found):
        columns[TIME] = [time for each in found if each.times is not None for time in each.times.tolist()]
    values = np.concatenate([each.values for each in found])
    columns |= {VALUE + name: column.tolist() for name, column in zip(names, values.T, strict=True)}
    numbers = [table.numbers[row] for each in found for row in each.rows]
    notes = (*table.notes, *left_out)
    return SeriesData(table.name, columns, numbers, notes, table.fingerprint, table.unit)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:6])
    return shown if len(names) <= 6 else Sentence("{shown} and {count} more").format(shown=shown, count=len(names) - 6)
