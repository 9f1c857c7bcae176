"""Both forecasters: which steps are a patch, what a scale changes, what may be known when, the cache, the records."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, ShapeError
from headwise.models.patch_forecaster import CausalPatchForecaster, PatchForecaster, PatchForecasterConfig, Scale

SMALL = {"dim": 16, "num_layers": 2, "num_heads": 2, "ffn_dim": 32, "num_quantiles": 3}
CONFIG = PatchForecasterConfig(context=22, horizon=10, patch_length=4, stride=4, **SMALL)
BOTH = pytest.mark.parametrize("kind", [PatchForecaster, CausalPatchForecaster])


@pytest.fixture
def series() -> Tensor:
    return torch.randn(3, 22).cumsum(1)


def test_the_last_patch_ends_with_the_context() -> None:
    config = PatchForecasterConfig(context=11, horizon=1, patch_length=4, stride=3, dim=4, num_heads=1)
    assert config.num_patches == 3
    assert config.spans == [(1, 5), (4, 8), (7, 11)]


def test_the_patches_that_are_read_are_those_of_the_spans() -> None:
    config = PatchForecasterConfig(context=11, horizon=1, patch_length=4, stride=3, **SMALL)
    model = PatchForecaster(config)
    read: list[Tensor] = []
    model.embed.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    x = torch.arange(11.0)[None]
    model(x)
    mean, spread = 5.0, 10**0.5  # of 0 … 10
    expected = torch.tensor([[1.0, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9, 10]])
    torch.testing.assert_close(read[0][0], (expected - mean) / spread)


def test_a_context_is_normalised_by_its_mean_or_its_last_value() -> None:
    x = torch.tensor([[1.0, 3.0, 5.0, 7.0]])  # mean 4, variance 5
    torch.testing.assert_close(Scale.of(x, "mean").normalise(x), (x - 4) / 5**0.5, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(Scale.of(x, "last").normalise(x), (x - 7) / 5**0.5, rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize("centre", ["mean", "last"])
def test_a_forecast_has_the_units_of_its_context(kind: type, centre: str, series: Tensor) -> None:
    config = PatchForecasterConfig(22, 10, 4, 4, centre=centre, **SMALL)  # type: ignore[arg-type]
    model = kind(config).eval()
    assert model(series).shape == (3, 10, 4)
    torch.testing.assert_close(model(1000 * series - 7), 1000 * model(series) - 7, rtol=1e-3, atol=0.5)


@BOTH
def test_every_channel_is_forecast_by_itself(kind: type, series: Tensor) -> None:
    model = kind(CONFIG).eval()
    torch.testing.assert_close(model(series)[1:2], model(series[1:2]))


@BOTH
def test_a_constant_context_gives_a_finite_forecast_near_it(kind: type) -> None:
    forecast = kind(CONFIG).eval()(torch.full((1, 22), 5.0))
    assert forecast.sub(5.0).abs().max() < 0.1


def test_the_linear_map_has_a_share_in_the_point_forecast_alone(series: Tensor) -> None:
    """A mean of quantiles would lie too near to the middle."""
    model = PatchForecaster(PatchForecasterConfig(22, 10, 4, 4, linear=True, **SMALL)).eval()  # type: ignore[arg-type]
    nn.init.normal_(model.linear.weight)
    patches, linear = model.members(series)[0]
    assert linear.shape == (3, 10, 1)
    torch.testing.assert_close(model(series)[..., 0], (patches[..., 0] + linear[..., 0]) / 2)
    assert torch.equal(model(series)[..., 1:], patches[..., 1:])


def test_the_encoders_record_has_every_patch() -> None:
    model = PatchForecaster(CONFIG).eval()
    x = torch.randn(3, 22)
    forecast, seen = model(x, record=True)
    torch.testing.assert_close(forecast, model(x))
    assert [record.shape for record in seen] == [(3, 2, 5, 5)] * 2


def test_the_cache_changes_nothing_in_a_forecast(series: Tensor) -> None:
    model = CausalPatchForecaster(CONFIG).eval()
    torch.testing.assert_close(model(series), model(series, cached=False), rtol=1e-4, atol=1e-4)


def test_a_forecast_is_what_is_learned_on_when_the_truth_is_the_forecast(series: Tensor) -> None:
    model = CausalPatchForecaster(CONFIG).eval()
    forecast = model(series)
    torch.testing.assert_close(model(series, forecast[..., 0]), forecast, rtol=1e-4, atol=1e-4)


def test_no_patch_is_learned_on_what_comes_in_it_or_after_it(series: Tensor) -> None:
    model = CausalPatchForecaster(CONFIG).eval()
    future = torch.randn(3, 10)
    changed = future.clone()
    changed[:, 4:] += 100  # the second and the third patch
    before, after = model(series, future), model(series, changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])  # the first was read for the second, and none of these
    assert (before[:, 8:] - after[:, 8:]).abs().max() > 1e-3


def test_the_causal_record_has_the_patches_that_were_written_too(series: Tensor) -> None:
    model = CausalPatchForecaster(CONFIG).eval()
    forecast, seen = model(series, record=True)
    torch.testing.assert_close(forecast, model(series), rtol=1e-4, atol=1e-4)
    assert [record.shape for record in seen] == [(3, 2, 7, 7)] * 2  # 5 of the context, and 2 of the 3 written ones
    assert not seen[0].weights().triu(1).any()


@BOTH
def test_a_context_of_another_length_is_refused(kind: type) -> None:
    with pytest.raises(ShapeError, match=r"context: expected \[N, 22\]. Received: context=\[3, 21\]"):
        kind(CONFIG)(torch.randn(3, 21))


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"future: expected \[N, 10\]. Received: future=\[3, 9\]"):
        CausalPatchForecaster(CONFIG)(torch.randn(3, 22), torch.randn(3, 9))
    with pytest.raises(ArgumentError, match="stride: expected patch_length=4, so that the next patch begins where one"):
        CausalPatchForecaster(PatchForecasterConfig(22, 10, 4, 2, **SMALL))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"context: expected a whole number of at least 16. Received: context=8"):
        PatchForecasterConfig(context=8, horizon=1)
    with pytest.raises(ArgumentError, match=r"dim: expected a multiple of num_heads=4. Received: dim=6"):
        PatchForecasterConfig(context=16, horizon=1, dim=6)
