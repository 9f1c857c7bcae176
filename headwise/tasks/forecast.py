"""`Forecast`: continues one or many series of numbers from their past, with quantiles.

Every column of numbers is forecast from its own past, by the same weights. The model is a patch encoder (PatchTST-like)
or a causal decoder of `headwise.models.patch_forecaster`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from headwise.errors import ArgumentError
from headwise.graphs import patch_forecaster
from headwise.graphs.graph import Graph
from headwise.graphs.rows import collect_inputs
from headwise.language import Sentence
from headwise.models.patch_forecaster import CausalPatchForecaster, PatchForecaster, PatchForecasterConfig
from headwise.tasks.columns import Columns, Row
from headwise.tasks.forecasting import served
from headwise.tasks.forecasting.served import Past
from headwise.tasks.options.forecast import ForecastOptions
from headwise.tasks.rows.series import TIME, VALUE, SeriesData, group_rows, list_channels, read_series, read_step
from headwise.tasks.rows.series_windows import SeriesWindow, SeriesWindows
from headwise.tasks.rows.tables import Data
from headwise.tasks.scores import Scores
from headwise.tasks.scoring.forecast_scores import ForecastSums, last_value, pinball, seasonal_naive
from headwise.tasks.task import Batch, Task
from headwise.text.tokens import Tokens

if TYPE_CHECKING:
    from typing_extensions import Self

    from headwise.records import Seen

Facts = dict[str, list[float]]  # for one series, a number for each column: "mean", "spread", "naive"


class Forecast(Task[ForecastOptions]):
    """Forecast series of numbers.

    >>> task = Forecast.fit("ETTh1.csv", horizon=96, out="run")
    >>> task.predict("ETTh1.csv")[0]     # the 96 hours after its last row
    {'time': '2018-06-26 20:00:00', 'column': 'HUFL', 'forecast': …, '0.1': …, '0.5': …, '0.9': …}

    The last rows of each series are held out for validation, not random rows. With `validation=`, pass other rows,
    including the `context` rows before the first one to forecast.
    """

    name = "forecast"
    options_type = ForecastOptions
    reads_files = True
    compared_by = (("mse", "min"), ("mae", "min"))

    model: PatchForecaster | CausalPatchForecaster

    def __init__(
        self,
        options: ForecastOptions,
        model: PatchForecaster | CausalPatchForecaster,
        *,
        channels: Sequence[str],
        facts: dict[str, Facts],
        season: int,
    ) -> None:
        super().__init__(options, model)
        self.channels, self.facts, self.season = list(channels), facts, season
        self.quantiles = sorted(float(text) for text in options.quantiles)

    # Data.

    @classmethod
    def read(cls, source: Any, options: ForecastOptions, *, targets: bool = True) -> Data:
        """Read all series, in order and without gaps. If there are several, those that are too short are left out.

        Raises:
            FileError, ArgumentError: see `headwise.tasks.rows.series.read_series`.
        """
        if isinstance(source, Data):
            return source
        return read_series(source, options, least=_least(options, targets))

    @classmethod
    def split(cls, data: Data, options: ForecastOptions) -> tuple[Data, Data]:
        """Split off the last `validation_share` (a fraction) of the rows of each series.

        The second part begins with the `context` rows before the split, which are read but not forecast. A series that
        is too short to split is used for training as a whole.

        Raises:
            ArgumentError: all series are too short.
        """
        least = options.context + options.horizon
        learned, held, whole = list[int](), list[int](), list[str]()
        for name, rows in group_rows(data).items():
            count = max(round(options.validation_share * len(rows)), options.horizon)
            border = len(rows) - count
            if border < least:
                learned += rows
                whole.append(name)
            else:
                learned += rows[:border]
                held += rows[border - options.context :]
        if not held:
            longest = max(map(len, group_rows(data).values()))
            raise ArgumentError(
                "{name}: expected {least} rows or more in some series, to learn from and to hold out (context "
                "{context} + 2 × horizon {horizon}). Received: {longest}; choose a smaller context or horizon, or "
                "give --validation FILE",
                name=data.name,
                least=least + options.horizon,
                context=options.context,
                horizon=options.horizon,
                longest=longest,
            )
        short = Sentence("{count} series too short to hold out a part, used for training as a whole")
        notes = (short.format(count=len(whole)),) if whole else ()
        return data.take(learned), replace(data.take(held), left_out=notes)

    @classmethod
    def learn(cls, data: Data, options: ForecastOptions) -> Self:
        """Make the task from the training data, before its training.

        This determines the scale of every column of every series and the season, and makes a model with random weights.

        Raises:
            ArgumentError: a column that is constant.
        """
        channels, step = list_channels(data), read_step(data)
        season = options.season or (1 if step is None else step.season)
        facts = {name: _facts(values_TC, season, options) for name, values_TC in _arrays(data, channels)}
        for place, channel in enumerate(channels):
            if all(each["constant"][place] for each in facts.values()):
                raise ArgumentError(
                    "{name}: column {column!r} is constant, so there is nothing to learn. Name other columns with "
                    "--target",
                    name=data.name,
                    column=channel,
                )
        if isinstance(data, SeriesData):  # other data are read as these were
            options = replace(options, time=data.time, time_format=data.time_format)
        return cls._make(options, channels, facts, season, linear=options.model == "patch")

    @classmethod
    def _make(
        cls, options: ForecastOptions, channels: Sequence[str], facts: dict[str, Facts], season: int, *, linear: bool
    ) -> Self:
        config = PatchForecasterConfig(
            context=options.context,
            horizon=options.horizon,
            patch_length=options.patch_length,
            stride=options.stride or options.patch_length,
            dim=options.dim,
            num_layers=options.layers,
            num_heads=options.heads,
            ffn_dim=2 * options.dim,
            dropout=options.dropout,
            num_quantiles=len(options.quantiles),
            centre=options.centre,
            linear=linear,
        )
        model = PatchForecaster(config) if options.model == "patch" else CausalPatchForecaster(config)
        return cls(options, model, channels=channels, facts=facts, season=season)

    def encode(self, data: Data, *, targets: bool = True) -> SeriesWindows:  # type: ignore[override]  # a sequence, not a list
        """Make every window of every series an example; without `targets`, only the last `context` rows of each series.

        Raises:
            ArgumentError: the data lack a column of the training data.
        """
        series = [
            torch.from_numpy(((values_TC - facts["mean"]) / facts["spread"]).astype(np.float32).T.copy())
            for values_TC, facts in self.scales(data)
        ]
        return SeriesWindows(series, _least(self.options, targets), last=not targets)

    def length(self, example: SeriesWindow) -> int:
        """Return the number of patches (the model's tokens) of a window, over all columns."""
        model, written = self.model, 0
        if isinstance(model, CausalPatchForecaster):
            written = -(-model.config.horizon // model.config.patch_length) - 1
        return (model.config.num_patches + written) * len(self.channels)

    def collate(self, examples: Sequence[SeriesWindow]) -> Batch:
        """Make a batch: "context" [N · C, S] and "future" [N · C, F], which is empty without targets."""
        values_NCS = examples[0].of.gather([window.place for window in examples])
        values_NS = values_NCS.flatten(0, 1)
        context = self.options.context
        return {"context": values_NS[:, :context].contiguous(), "future": values_NS[:, context:].contiguous()}

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (loss, number of forecast values): the point forecast's error plus the pinball loss of the quantiles.

        In training, the model may consist of several members; the loss is the mean of theirs.
        """
        context_NS, future_NF = batch["context"], batch["future"]
        if not self.training:
            each_NFO = [self.model(context_NS)]
        elif isinstance(self.model, PatchForecaster):
            each_NFO, _ = self.model.members(context_NS)
        else:  # the model reads the true future, only in training
            each_NFO = [self.model(context_NS, future_NF)]
        losses = [self._loss(y_NFO, future_NF) for y_NFO in each_NFO]
        return torch.stack(losses).mean(), torch.tensor(future_NF.numel(), device=future_NF.device)

    def _loss(self, y_NFO: Tensor, future_NF: Tensor) -> Tensor:
        point_NF = y_NFO[..., 0]
        if self.options.loss == "huber":  # twice, so that near 0 it is the square of the error
            loss = 2 * huber_loss(point_NF, future_NF, reduction="sum")
        else:
            error_NF = point_NF - future_NF
            loss = (error_NF.square() if self.options.loss == "mse" else error_NF.abs()).sum()
        if y_NFO.shape[-1] > 1:  # a linear map has no quantiles
            loss = loss + pinball(y_NFO[..., 1:], future_NF, y_NFO.new_tensor(self.quantiles)).mean(-1).sum()
        return loss

    def settle(self, held_out: Data) -> bool:
        """Choose the share (0, 1/2 or 1) of the linear map in the forecast, by the smallest held-out error.

        Returns whether the model has a linear map.
        """
        model = self.model
        if not isinstance(model, PatchForecaster) or model.linear is None:
            return False
        errors = dict.fromkeys((0.5, 0.0, 1.0), 0.0)  # the first of equal errors
        self.eval()
        with torch.no_grad():
            for batch, _ in self.batches(self.encode(held_out)):
                patches_NF, linear_NF = (y_NFO[..., 0] for y_NFO in model.members(batch["context"])[0])
                for share in errors:
                    error_NF = torch.lerp(patches_NF, linear_NF, share) - batch["future"]
                    errors[share] += float((error_NF.abs() if self.options.loss == "mae" else error_NF.square()).sum())
        model.share.fill_(min(errors, key=lambda share: errors[share]))
        return True

    # Use.

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Forecast what follows the end of each series: one row per series, column and step.

        Args:
            inputs: a file, a DataFrame or another input of `read_table`, with the trained columns and at least
                `context` rows per series.

        Returns:
            "series" (if there are several), "time" (with timestamps) or "step" (from 1), "column", "forecast",
            and one column per quantile, such as "0.1"; in the units of the column.
        """
        data = self._read(inputs, targets=False)
        step, horizon = read_step(data), self.options.horizon
        y_NCFO = torch.cat([y for y, _, _ in self._forecasts(self.encode(data, targets=False))])
        found: list[dict[str, Any]] = []
        for i, ((name, rows), (_, facts)) in enumerate(zip(group_rows(data).items(), self.scales(data), strict=True)):
            ahead: dict[str, list[Any]] = {"step": list(range(1, horizon + 1))}
            if step is not None:
                ahead = {"time": [str(time) for time in step.after(data.columns[TIME][rows[-1]], horizon)]}
            (word, times), which = ahead.popitem(), {"series": name} if name else {}
            for place, channel in enumerate(self.channels):
                own_FO = y_NCFO[i, place].double() * facts["spread"][place] + facts["mean"][place]
                names = ["forecast", *(f"{share:g}" for share in self.quantiles)]
                found += [
                    {**which, word: time, "column": channel, **dict(zip(names, outputs, strict=True))}
                    for time, outputs in zip(times, own_FO.tolist(), strict=True)
                ]
        return found

    def evaluate(self, source: Any) -> Scores:
        """Score all windows of all series (a window begins at every step), beside the scores of naive forecasts."""
        data = self._read(source, targets=True)
        windows = self.encode(data)
        units_C, naive_C = (
            torch.tensor(np.array([facts[word] for _, facts in self.scales(data)])) for word in ("spread", "naive")
        )
        own = ForecastSums(self.channels, self.quantiles)
        baselines: dict[str, ForecastSums] = {"last value": ForecastSums(self.channels, self.quantiles)}
        if 1 < self.season <= self.options.context:
            seasonal = Sentence("seasonal naive, {steps} steps").format(steps=self.season)
            baselines[seasonal] = ForecastSums(self.channels, self.quantiles)
        for y_NCFO, batch_NCS, places in self._forecasts(windows):
            context_NCS, truth_NCF = batch_NCS.split((self.options.context, self.options.horizon), dim=-1)
            which = windows.series[places]
            scale = units_C[which], (naive_C / units_C)[which]
            own.add(y_NCFO, truth_NCF, *scale)
            for name, sums in baselines.items():
                naive = last_value(context_NCS, self.options.horizon)
                if name != "last value":
                    naive = seasonal_naive(context_NCS, self.options.horizon, self.season)
                sums.add(naive, truth_NCF, *scale)
        named = {name: sums.values() for name, sums in baselines.items()}
        return Scores(own.values(), len(windows), named, left_out=data.left_out)

    def look(self, inputs: Any) -> list[Seen]:
        """Return the attention between patches of each series' last context; every column is an example of the batch.

        A patch is named by the times of its first and last step. With the causal model the patches of the forecast
        follow.
        """
        sources = inputs if isinstance(inputs, list | tuple) and not _is_table(inputs) else [inputs]
        found: list[Seen] = []
        self.eval()
        for source in sources:
            data = self._read(source, targets=False)
            windows = self.encode(data, targets=False)
            for number, rows in enumerate(group_rows(data).values()):
                batch = self.transfer_batch_to_device(self.collate([windows[number]]), self.device, 0)
                with torch.no_grad():
                    _, seen = self.model(batch["context"], record=True)
                seen.tokens = self._patch_names(data, rows)
                found.append(seen)
        return found

    def columns(self) -> Columns:
        return served.columns(self.options, self.channels, self.quantiles, next(iter(self.facts.values())))

    def read_row(self, row: Row) -> Past:
        data = served.read_history(row, self.options, self.channels)
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that are too large are checked here
            ((_, facts),) = self.scales(data)
            window = self.encode(data, targets=False)
        if not window.values_CT.isfinite().all():
            raise served.too_large()
        return Past(data, window, facts["mean"], facts["spread"])

    def count_tokens(self, asked: Past) -> int:
        return self.length(asked.window[0])

    def answer_rows(self, asked: Sequence[Past]) -> list[Row]:
        windows = SeriesWindows([each.window.values_CT for each in asked], self.options.context, last=True)
        found: dict[int, Tensor] = {}
        for y_NCFO, _, places in self._forecasts(windows):
            found |= dict(zip(places, y_NCFO, strict=True))
        return [served.answer(each, found[place].double().numpy()) for place, each in enumerate(asked)]

    def look_at(self, asked: Past) -> tuple[Seen, None]:
        (seen,) = self.look(asked.data)
        return seen, None

    # State besides weights.

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """Return the graph "model": context [batch, S] → forecast [batch, F, O]. A row is one column of one series.

        Values are in the standardised units of the training: for each column, (x - mean) / spread, with the numbers in
        the state of the run folder. The O outputs are the point forecast and then the quantiles, which may be out of
        order.
        """
        return patch_forecaster.graphs(self.model, collect_inputs(self.model, self.predict, rows))

    def state(self) -> dict[str, Any]:
        """Return the columns, their scales in each series, the season, and whether the model also has a linear map."""
        linear = self.model.config.linear
        return {"channels": self.channels, "season": self.season, "series": self.facts, "linear": linear}

    @classmethod
    def restore(cls, options: ForecastOptions, state: dict[str, Any], folder: Path) -> Self:
        """Make the task as it was before its training, with random weights."""
        linear = state.get("linear", False)  # version 0.1.0 had no linear map
        return cls._make(options, state["channels"], state["series"], state["season"], linear=linear)

    # Building blocks.

    def _read(self, source: Any, targets: bool) -> Data:
        if isinstance(source, Data):
            return source
        return read_series(source, self.options, least=_least(self.options, targets), columns=self.channels)

    def scales(self, data: Data) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yield for each series its values [T, C] and its scale.

        The scale is the one found in training or, for a series that the training data did not have, computed from its
        values.
        """
        lacking = [name for name in self.channels if VALUE + name not in data.columns]
        if lacking:
            raise ArgumentError(
                "{name}: there is no column {column!r}, which the task was trained on. The columns are: {columns}",
                name=data.name,
                column=lacking[0],
                columns=", ".join(map(repr, list_channels(data))),
            )
        for name, values_TC in _arrays(data, self.channels):
            facts = self.facts.get(name) or _facts(values_TC, self.season, self.options)
            yield values_TC, {word: np.array(values) for word, values in facts.items()}

    def _forecasts(self, windows: SeriesWindows) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """Yield (forecasts [N, C, F, O], quantiles in order; windows [N, C, S + F]; the windows' indices), on CPU."""
        channels = len(self.channels)
        self.eval()
        with torch.no_grad():
            for batch, places in self.batches(windows):
                y_NFO = self.model(batch["context"]).float()
                # Crossing quantiles are sorted, which never makes them worse: Chernozhukov et al. 2010.
                y_NFO = torch.cat([y_NFO[..., :1], y_NFO[..., 1:].sort(-1).values], dim=-1)
                yield y_NFO.cpu().unflatten(0, (-1, channels)), windows.gather(places), places

    def _patch_names(self, data: Data, rows: Sequence[int]) -> list[Tokens]:
        """Return for each column its patches as tokens, named by the times that they cover."""
        model, context, horizon = self.model, self.options.context, self.options.horizon
        spans, size = model.config.spans, model.config.patch_length
        if isinstance(model, CausalPatchForecaster):
            spans = [*spans, *((start, start + size) for start in range(context, context + horizon - size, size))]
        steps = [str(step) for step in range(len(rows) - context, len(rows) + horizon)]
        if (step := read_step(data)) is not None:
            times = [data.columns[TIME][row] for row in rows[-context:]]
            times += step.after(times[-1], horizon)
            steps = [_short(time, [times[0], times[1], times[-1]]) for time in times]
        labels = tuple(f"{steps[first]}…{steps[behind - 1]}" for first, behind in spans)
        return [Tokens.of_names(labels, name) for name in self.channels]


def _least(options: ForecastOptions, targets: bool) -> int:
    """Return the smallest number of rows that a series may have."""
    return options.context + (options.horizon if targets else 0)


def _arrays(data: Data, channels: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, values float64 [T, C]) of each series."""
    values_TC = np.stack([np.asarray(data.columns[VALUE + name], dtype=np.float64) for name in channels], axis=1)
    for name, rows in group_rows(data).items():
        yield name, values_TC[rows]


def _facts(values_TC: np.ndarray, season: int, options: ForecastOptions) -> Facts:
    """Compute for each column of a series: mean, spread, whether it is constant, the error of the naive forecast."""
    mean, spread = values_TC.mean(0), values_TC.std(0)
    # Rounding: a spread this small relative to the mean counts as 0.
    constant = spread <= 1e-9 * np.maximum(np.abs(mean), 1e-300)
    if not options.standardise:
        mean, spread = np.zeros_like(mean), np.ones_like(spread)
    lag = season if season < len(values_TC) else 1
    naive = np.abs(values_TC[lag:] - values_TC[:-lag]).mean(0)
    return {
        "mean": mean.tolist(),
        "spread": np.where(constant, 1.0, spread).tolist(),
        "naive": naive.tolist(),
        "constant": constant.astype(float).tolist(),
    }


def _is_table(inputs: Sequence[Any]) -> bool:
    return len(inputs) > 0 and all(isinstance(row, dict) for row in inputs)


def _short(time: Any, among: Sequence[Any]) -> str:
    """Format a time without the parts that are the same in all the times `among`."""
    if not hasattr(time, "strftime"):
        return str(time)
    date = "%Y-%m-%d" if among[0].year != among[-1].year else "%m-%d"
    if all(each == each.normalize() for each in among):
        return str(time.strftime("%Y-%m-%d"))
    return str(time.strftime(f"{date} %H:%M" if all(each.second == 0 for each in among) else f"{date} %H:%M:%S"))
