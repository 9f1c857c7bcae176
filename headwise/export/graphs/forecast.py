"""The graph of forecast: the past of some series -> their future."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.export.graph import Graph, Value
from headwise.export.graphs.rows import inputs_of
from headwise.export.graphs.tokens import whole
from headwise.models.patch_forecaster import CausalPatchForecaster, PatchForecaster
from headwise.tasks.forecast import Forecast


def graphs(task: Forecast, rows: Any = None) -> tuple[Graph, ...]:
    """model: context [batch, S] → forecast [batch, F, O], each column of each series separately.

    Values are in the standardised units of the training: of each column, (x - mean) / spread, with the numbers in the
    state of the run folder. O are the point forecast and the quantiles, which may cross.
    """
    real = [] if rows is None else inputs_of(task.model, lambda: task.predict(rows))
    return (graph(task.model, real),)  # type: ignore[arg-type]


def graph(model: PatchForecaster | CausalPatchForecaster, real: list[Any]) -> Graph:
    """The graph of any forecaster."""
    config = model.config
    context = Value("context", torch.float32, ("batch", config.context))
    forecast = Value("forecast", torch.float32, ("batch", config.horizon, 1 + config.num_quantiles))
    examples = [*whole(real), *((walk,) for walk in _walks(config.context))]
    module = _Uncached(model) if isinstance(model, CausalPatchForecaster) else model
    return Graph("model", module, (context,), (forecast,), examples)


class _Uncached(nn.Module):
    """The same forecast, patch by patch, without a cache: a cache looks at values of tensors, which a trace lacks."""

    def __init__(self, model: CausalPatchForecaster) -> None:
        super().__init__()
        self.model = model

    def forward(self, context: Tensor) -> Tensor:
        forecast: Tensor = self.model(context, cached=False)
        return forecast


def _walks(length: int) -> list[Tensor]:
    """Random walks, which resemble real series more than noise does."""
    drawn = torch.Generator().manual_seed(0)
    return [torch.randn(batch, length, generator=drawn).cumsum(1) / length**0.5 for batch in (3, 1, 5)]
