"""Scores of forecasts: means of the errors of each method (the model or a naive forecast), summed up over windows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NAMED_CHANNELS = 8  # with more columns, the errors of single columns would hide the common scores


class ForecastSums:
    """The errors of one method (the model or a naive forecast), summed up batch by batch.

        mse, mae      of the given values, which are standardised if the task standardises
        mase          |error| over the mean |x[t] - x[t - season]| of the training part. Hyndman & Koehler 2006, section
                      3; without a season their season is 1
        pinball       max(q e, (q - 1) e) with e = truth - forecast, the mean over all q. Koenker & Bassett 1978
        below_q       the share of truths that are not above the forecast of quantile q: equal to q if calibrated
        mae_of_NAME   the mae of one column, in its own units

    Args:
        channels: the names of the columns.
        quantiles: the quantiles in forecasts after the point; a method without quantiles uses its point for each.
    """

    def __init__(self, channels: Sequence[str], quantiles: Sequence[float]) -> None:
        self.channels, self.quantiles = list(channels), list(quantiles)
        self._count = 0  # number of windows times steps
        self._squared = self._absolute = self._own = torch.zeros(len(channels), dtype=torch.float64)
        self._scaled = self._scaled_count = torch.zeros(len(channels), dtype=torch.float64)
        self._pinball = self._below = torch.zeros(len(quantiles), dtype=torch.float64)

    def add(self, forecast_NCFO: Tensor, truth_NCF: Tensor, units_NC: Tensor, naive_NC: Tensor) -> None:
        """Add the errors of the forecasts of some windows.

        Args:
            forecast_NCFO: [N, C, F, 1 + quantiles], the point forecast first; or only the point forecast, [N, C, F, 1].
            truth_NCF: the true values [N, C, F].
            units_NC: the factor from the values above (which may be standardised) to the units of the column.
            naive_NC: the mean error of the naive forecast in the training part, in units of the values above; 0 if it
                has no error.
        """
        truth_NCF, point_NCF = truth_NCF.double(), forecast_NCFO[..., 0].double()
        error_NCF = (truth_NCF - point_NCF).abs()
        steps = truth_NCF.shape[0] * truth_NCF.shape[2]
        self._count += steps
        self._squared = self._squared + error_NCF.square().sum((0, 2))
        self._absolute = self._absolute + error_NCF.sum((0, 2))
        self._own = self._own + (error_NCF * units_NC[..., None]).sum((0, 2))
        known = naive_NC > 0
        scaled_NCF = torch.where(known, 1 / naive_NC.clamp(min=1e-30), 0.0)[..., None] * error_NCF
        self._scaled = self._scaled + scaled_NCF.sum((0, 2))
        self._scaled_count = self._scaled_count + known.sum(0) * truth_NCF.shape[2]
        if self.quantiles:
            guess = (forecast_NCFO[..., 1:] if forecast_NCFO.shape[-1] > 1 else forecast_NCFO).double()
            share = torch.tensor(self.quantiles, dtype=torch.float64)
            self._pinball = self._pinball + pinball(guess, truth_NCF, share).sum((0, 1, 2))
            self._below = self._below + (truth_NCF[..., None] <= guess).double().sum((0, 1, 2))

    def values(self) -> dict[str, float]:
        """Return the mean of each score over everything that was added, by the name of the score."""
        every = self._count * len(self.channels)
        found = {"mse": float(self._squared.sum()) / every, "mae": float(self._absolute.sum()) / every}
        if self._scaled_count.sum() > 0:
            found["mase"] = float(self._scaled.sum() / self._scaled_count.sum())
        if self.quantiles:
            found["pinball"] = float(self._pinball.mean()) / every
            below = (self._below / every).tolist()
            found |= {f"below_{share:g}": value for share, value in zip(self.quantiles, below, strict=True)}
        if len(self.channels) <= NAMED_CHANNELS:
            own = (self._own / self._count).tolist()
            found |= {f"mae_of_{name}": value for name, value in zip(self.channels, own, strict=True)}
        return found


def pinball(forecast: Tensor, truth: Tensor, quantiles: Tensor) -> Tensor:
    """Compute the pinball loss of each quantile, [..., Q], of forecasts [..., Q] against true values [...]."""
    over = truth[..., None] - forecast
    return torch.maximum(quantiles * over, (quantiles - 1) * over)


def last_value(context_NCS: Tensor, horizon: int) -> Tensor:
    """Make the naive forecast that repeats the last value of the past: [N, C, F, 1]."""
    return context_NCS[..., -1:, None].expand(-1, -1, horizon, -1)


def seasonal_naive(context_NCS: Tensor, horizon: int, season: int) -> Tensor:
    """Make the naive forecast that repeats the last season of the past: [N, C, F, 1]."""
    steps = torch.arange(horizon) % season
    return context_NCS[..., -season:][..., steps, None]
