"""The interface of forecast: the past of a series -> its future."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headwise.errors import ArgumentError
from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces.cells import array_of, text_of, texts_of
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.tasks.forecast import Forecast
from headwise.tasks.rows.series import SERIES, TIME, read_series, step_of
from headwise.tasks.rows.series_windows import SeriesWindows
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.tables import Data
from headwise.viewer import Input, inputs_of


@dataclass(frozen=True)
class Past:
    """One series.

    Args:
        data: its rows, in the form that the task reads from a file.
        window: the last rows, which the model reads, standardised.
        mean, spread: [C], the mean and standard deviation of each column.
    """

    data: Data
    window: SeriesWindows
    mean: np.ndarray
    spread: np.ndarray


class ForecastInterface(TaskInterface[Forecast, Past]):
    """`history`, optionally `time` and `series` -> `forecast`, `quantiles`, `time`."""

    def describe(self) -> Description:
        task = self.task
        context, horizon, channels = task.options.context, task.options.horizon, task.channels
        named = ", ".join(channels)
        shares = ", ".join(f"{share:g}" for share in task.quantiles)
        self.history = Column(
            "history", "FP64", (-1, len(channels)), f"at least {context} rows in time order, with the columns {named}"
        )
        self.times = Column(
            "time", "BYTES", (-1,), "the time of each row, to get the times of the forecast", optional=True
        )
        inputs = [self.history, self.times]
        if task.options.series is not None:
            says = "the name of the series; a series of the training data keeps its scaling"
            inputs.append(Column("series", "BYTES", (), says, optional=True))
        outputs = [
            Column("forecast", "FP64", (horizon, len(channels)), f"the next rows, with the columns {named}"),
            Column("time", "BYTES", (horizon,), "the time of each row; numbers from 1 if no times were given"),
        ]
        if task.quantiles:
            shape = (horizon, len(channels), len(task.quantiles))
            outputs.insert(1, Column("quantiles", "FP64", shape, f"the quantiles {shares} of each number"))
        return Description(
            task=task.name,
            platform=self.platform,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            explains=self.has_records,
            example={"history": self._example()},
        )

    def _example(self) -> np.ndarray:
        """A sine wave around the mean of the first training series, one period per context."""
        (facts, *_), context = self.task.facts.values(), self.task.options.context
        wave = np.sin(np.arange(context) * 2 * np.pi / context)[:, None]
        return np.round(np.array(facts["mean"]) + np.array(facts["spread"]) * wave, 3)

    def parse(self, row: Row) -> Past:
        task, options = self.task, self.task.options
        values = array_of(row, self.history)
        odd = ~np.isfinite(values) if not options.interpolate else np.isinf(values)
        if odd.any():
            place, column = (int(each) for each in np.argwhere(odd)[0])
            raise ArgumentError(
                f"history: expected numbers. Received: {values[place, column]} in row {place} (from 0), column "
                f"{task.channels[column]!r}"
            )
        if len(values) < options.context:
            raise ArgumentError(f"history: expected at least {options.context} rows. Received: {len(values)} rows")
        columns: dict[str, list[Any]] = dict(zip(task.channels, values.T.tolist(), strict=True))
        time = "time" if "time" not in columns else "time of the row"
        if row.get("time") is not None:
            columns[time] = texts_of(row, "time")
            if len(columns[time]) != len(values):
                raise ArgumentError(
                    f"time: expected {len(values)} times, one per row of history. Received: {len(columns[time])} times"
                )
        table = Table("history", columns, [*range(len(values))])
        chosen = replace(options, time=time if time in columns else "none", series=None)
        data = read_series(table, chosen, least=options.context, columns=task.channels)
        if row.get("series") is not None:
            name = text_of(row, "series")
            data = replace(data, columns={SERIES: [name] * len(data), **data.columns})
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that are too large are checked here
            ((_, facts),) = task.scales(data)
            window = task.encode(data, targets=False)
        if not window.values_CT.isfinite().all():
            raise _too_large()
        return Past(data, window, facts["mean"], facts["spread"])

    def tokens(self, asked: Past) -> int:
        return self.task.length(asked.window[0])

    def run(self, asked: Sequence[Past]) -> list[Row]:
        windows = SeriesWindows([each.window.values_CT for each in asked], self.task.options.context, last=True)
        shape = (len(asked), len(self.task.channels), self.task.options.horizon, 1 + len(self.task.quantiles))
        y_NCFO = torch.empty(shape)
        for found, _, places in self.task.forecasts(windows):
            y_NCFO[places] = found
        return [self._row(each, y_CFO.double().numpy()) for each, y_CFO in zip(asked, y_NCFO, strict=True)]

    def _row(self, asked: Past, y_CFO: np.ndarray) -> Row:
        own_FCO = (y_CFO * asked.spread[:, None, None] + asked.mean[:, None, None]).transpose(1, 0, 2)
        if not np.isfinite(own_FCO).all():
            raise _too_large()
        horizon = self.task.options.horizon
        times = [str(step) for step in range(1, horizon + 1)]
        if (step := step_of(asked.data)) is not None:
            times = [str(time) for time in step.after(asked.data.columns[TIME][-1], horizon)]
        row: Row = {"forecast": np.ascontiguousarray(own_FCO[..., 0])}
        if self.task.quantiles:
            row["quantiles"] = np.ascontiguousarray(own_FCO[..., 1:])
        return {**row, "time": np.array(times, dtype=object)}

    def look(self, asked: Past) -> list[Input]:
        return inputs_of(self.task.look([asked.data]))


def _too_large() -> ArgumentError:
    return ArgumentError("history: its numbers are too large for a forecast")
