"""Reads a series from a request to the server, and makes the answer from its forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headwise.errors import ArgumentError
from headwise.tasks.columns import Column, Columns, Row, take_array, take_text, take_texts
from headwise.tasks.options.forecast import ForecastOptions
from headwise.tasks.rows.series import SERIES, TIME, read_series, read_step
from headwise.tasks.rows.series_windows import SeriesWindows
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.tables import Data


@dataclass(frozen=True)
class Past:
    """One series in a request.

    Args:
        data: the rows of the series, in the form in which the task reads a file.
        window: the last rows, which the model reads, standardised.
        mean, spread: [C], the mean and standard deviation of each column.
    """

    data: Data
    window: SeriesWindows
    mean: np.ndarray
    spread: np.ndarray


def columns(
    options: ForecastOptions, channels: Sequence[str], quantiles: Sequence[float], facts: Mapping[str, Sequence[float]]
) -> Columns:
    """Return the columns for a server: `history`, optionally `time` and `series` -> `forecast`, `quantiles`, `time`.

    Args:
        facts: the mean and the spread of each column of a series, from which an example row is made.
    """
    horizon, named = options.horizon, ", ".join(channels)
    times = Column("time", "BYTES", (-1,), "the time of each row, to get the times of the forecast", optional=True)
    inputs = [_history(options, channels), times]
    if options.series is not None:
        says = "the name of the series; a series of the training data keeps its scaling"
        inputs.append(Column("series", "BYTES", (), says, optional=True))
    outputs = [
        Column("forecast", "FP64", (horizon, len(channels)), f"the next rows, with the columns {named}"),
        Column("time", "BYTES", (horizon,), "the time of each row; numbers from 1 if no times were given"),
    ]
    if quantiles:
        shape = (horizon, len(channels), len(quantiles))
        shares = ", ".join(f"{share:g}" for share in quantiles)
        outputs.insert(1, Column("quantiles", "FP64", shape, f"the quantiles {shares} of each number"))
    return Columns(inputs=tuple(inputs), outputs=tuple(outputs), example={"history": _example(options.context, facts)})


def _history(options: ForecastOptions, channels: Sequence[str]) -> Column:
    says = f"at least {options.context} rows in time order, with the columns {', '.join(channels)}"
    return Column("history", "FP64", (-1, len(channels)), says)


def _example(context: int, facts: Mapping[str, Sequence[float]]) -> np.ndarray:
    """Make an example of a history, [context, C]: a sine wave around the mean of each column, with one period."""
    wave = np.sin(np.arange(context) * 2 * np.pi / context)[:, None]
    return np.round(np.array(facts["mean"]) + np.array(facts["spread"]) * wave, 3)


def read_history(row: Row, options: ForecastOptions, channels: Sequence[str]) -> Data:
    """Read the series in a row of a request, in the form in which the task reads a file.

    Raises:
        ArgumentError, DtypeError, ShapeError: a history that is too short or not of numbers, or times that do not fit.
    """
    values = take_array(row, _history(options, channels))
    odd = ~np.isfinite(values) if not options.interpolate else np.isinf(values)
    if odd.any():
        place, column = (int(each) for each in np.argwhere(odd)[0])
        raise ArgumentError(
            f"history: expected numbers. Received: {values[place, column]} in row {place} (from 0), column "
            f"{channels[column]!r}"
        )
    if len(values) < options.context:
        raise ArgumentError(f"history: expected at least {options.context} rows. Received: {len(values)} rows")
    columns: dict[str, list[Any]] = dict(zip(channels, values.T.tolist(), strict=True))
    time = "time" if "time" not in columns else "time of the row"
    if row.get("time") is not None:
        columns[time] = take_texts(row, "time")
        if len(columns[time]) != len(values):
            raise ArgumentError(
                f"time: expected {len(values)} times, one per row of history. Received: {len(columns[time])} times"
            )
    table = Table("history", columns, [*range(len(values))])
    written = options.time_format if time in columns else None
    chosen = replace(options, time=time if time in columns else "none", time_format=written, series=None)
    data = read_series(table, chosen, least=options.context, columns=channels)
    if row.get("series") is not None:
        name = take_text(row, "series")
        data = replace(data, columns={SERIES: [name] * len(data), **data.columns})
    return data


def answer(asked: Past, y_CFO: np.ndarray) -> Row:
    """Make the row of the answer from the standardised forecast [C, F, O] (the point forecast, then the quantiles)."""
    own_FCO = (y_CFO * asked.spread[:, None, None] + asked.mean[:, None, None]).transpose(1, 0, 2)
    if not np.isfinite(own_FCO).all():
        raise too_large()
    horizon, outputs = own_FCO.shape[0], own_FCO.shape[2]
    times = [str(step) for step in range(1, horizon + 1)]
    if (step := read_step(asked.data)) is not None:
        times = [str(time) for time in step.after(asked.data.columns[TIME][-1], horizon)]
    row: Row = {"forecast": np.ascontiguousarray(own_FCO[..., 0])}
    if outputs > 1:
        row["quantiles"] = np.ascontiguousarray(own_FCO[..., 1:])
    return {**row, "time": np.array(times, dtype=object)}


def too_large() -> ArgumentError:
    """Return the error for a history whose numbers are too large to be read, or whose forecast is not finite."""
    return ArgumentError("history: its numbers are too large for a forecast")
