"""The past of a series to its future."""

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
        data: its rows, as the task reads them from a file.
        window: the last of them that the model reads, standardised.
        mean, spread: of each column, [C]: what it was standardised by.
    """

    data: Data
    window: SeriesWindows
    mean: np.ndarray
    spread: np.ndarray


class ForecastInterface(TaskInterface[Forecast, Past]):
    """`history`, and if they are known `time` and `series` -> `forecast`, `quantiles`, `time`."""

    def describe(self) -> Description:
        task = self.task
        context, horizon, channels = task.options.context, task.options.horizon, task.channels
        named = ", ".join(channels)
        shares = ", ".join(f"{share:g}" for share in task.quantiles)
        self.history = Column(
            "history", "FP64", (-1, len(channels)), f"rows in time order, at least {context}; their columns: {named}"
        )
        self.times = Column("time", "BYTES", (-1,), "the time of each row, if the next ones are wanted", optional=True)
        inputs = [self.history, self.times]
        if task.options.series is not None:
            says = "the name of the series; one that was learned is scaled as it was then"
            inputs.append(Column("series", "BYTES", (), says, optional=True))
        outputs = [
            Column("forecast", "FP64", (horizon, len(channels)), f"the next rows; their columns: {named}"),
            Column("time", "BYTES", (horizon,), "of each row; its number, from 1, where no times were given"),
        ]
        if task.quantiles:
            shape = (horizon, len(channels), len(task.quantiles))
            outputs.insert(1, Column("quantiles", "FP64", shape, f"of each number, the quantiles {shares}"))
        return Description(
            task=task.name,
            platform=self.platform,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            explains=self.has_records,
            example={"history": self._example()},
        )

    def _example(self) -> np.ndarray:
        """A wave about the mean of the first series that was learned, a period in its context."""
        (facts, *_), context = self.task.facts.values(), self.task.options.context
        wave = np.sin(np.arange(context) * 2 * np.pi / context)[:, None]
        return np.round(np.array(facts["mean"]) + np.array(facts["spread"]) * wave, 3)

    def read(self, row: Row) -> Past:
        task, options = self.task, self.task.options
        values = array_of(row, self.history)
        odd = ~np.isfinite(values) if not options.interpolate else np.isinf(values)
        if odd.any():
            place, column = (int(each) for each in np.argwhere(odd)[0])
            raise ArgumentError(
                f"history: expected numbers, received {values[place, column]} in row {place} (from 0), column "
                f"{task.channels[column]!r}"
            )
        if len(values) < options.context:
            raise ArgumentError(f"history: expected at least {options.context} rows, received {len(values)}")
        columns: dict[str, list[Any]] = dict(zip(task.channels, values.T.tolist(), strict=True))
        time = "time" if "time" not in columns else "time of the row"
        if row.get("time") is not None:
            columns[time] = texts_of(row, "time")
            if len(columns[time]) != len(values):
                raise ArgumentError(
                    f"time: expected one for each row of the history, {len(values)}, received {len(columns[time])}"
                )
        table = Table("history", columns, [*range(len(values))])
        chosen = replace(options, time=time if time in columns else "none", series=None)
        data = read_series(table, chosen, least=options.context, columns=task.channels)
        if row.get("series") is not None:
            name = text_of(row, "series")
            data = replace(data, columns={SERIES: [name] * len(data), **data.columns})
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers that are too large, which is looked at here
            ((_, facts),) = task.scales(data)
            window = task.encode(data, targets=False)
        if not window.values_CT.isfinite().all():
            raise _too_large()
        return Past(data, window, facts["mean"], facts["spread"])

    def size(self, asked: Past) -> int:
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
    return ArgumentError("history: its numbers are too large to be forecast")
