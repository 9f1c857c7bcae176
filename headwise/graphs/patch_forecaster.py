"""The graph of a forecaster: from the past of some series to their future."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.graphs.graph import Computation, Graph, Value
from headwise.graphs.tokens import whole
from headwise.models.patch_forecaster import CausalPatchForecaster, PatchForecaster


def graphs(model: PatchForecaster | CausalPatchForecaster, real: list[Any] | None = None) -> tuple[Graph, ...]:
    """Return the graph "model": context [batch, S] → forecast [batch, F, O]. `real`: real contexts, as examples."""
    config = model.config
    context = Value("context", torch.float32, ("batch", config.context))
    forecast = Value("forecast", torch.float32, ("batch", config.horizon, 1 + config.num_quantiles))
    examples = [*whole(real), *((walk,) for walk in _walks(config.context))]
    module = _Uncached(model) if isinstance(model, CausalPatchForecaster) else model
    return (Graph("model", module, (context,), (forecast,), examples, bool(real)),)


class _Uncached(Computation[CausalPatchForecaster]):
    """Computes the model's forecast without a cache: a cache reads values of tensors, which a trace does not have."""

    def forward(self, context: Tensor) -> Tensor:
        forecast: Tensor = self.model(context, cached=False)
        return forecast


def _walks(length: int) -> list[Tensor]:
    """Make random walks as example contexts: they resemble real series more than noise does."""
    drawn = torch.Generator().manual_seed(0)
    return [torch.randn(batch, length, generator=drawn).cumsum(1) / length**0.5 for batch in (3, 1, 5)]
