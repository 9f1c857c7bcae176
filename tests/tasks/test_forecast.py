"""Forecasts: what only attention to the right patch solves; scores worked out by hand; splits; what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headwise import tasks
from headwise.errors import ArgumentError, DtypeError
from headwise.tasks.forecast import Forecast
from headwise.tasks.options.forecast import ForecastOptions
from headwise.tasks.rows.series import VALUE, group_rows
from headwise.tasks.scoring.forecast_scores import ForecastSums, last_value, pinball, seasonal_naive
from tests.tasks import problems

TINY: dict[str, Any] = {"context": 6, "horizon": 2, "patch_length": 2, "dim": 8, "heads": 2, "layers": 1}


def untrained(table: Any, **options: Any) -> Forecast:
    """A task as it is before its first step."""
    chosen = ForecastOptions(**{**TINY, **options})
    torch.manual_seed(0)
    return Forecast.learn(Forecast.read(table, chosen), chosen).eval()


# What cannot be learned without attention to the right place.


def test_a_decoder_learns_to_look_back_by_the_lag_of_a_series() -> None:
    x = problems.lagged(3000, lag=32)
    held = {"x": x[2400 - 64 :]}
    task = Forecast.fit(
        {"x": x[:2400]},
        validation=held,
        **{"context": 64, "horizon": 16, "model": "causal", "patch_length": 8},
        **{"dim": 32, "heads": 1, "layers": 1, "dropout": 0.0, "quantiles": (), "centre": "mean"},
        **{"epochs": 5, "batch_size": 64, "lr": 5e-3, "warmup": 0.1},
    )
    scores = task.evaluate(held)
    assert scores.values["mse"] < 0.3 < 1 < scores.baselines["last value"]["mse"]  # 1 - 0.95² = 0.0975 is the best
    # Steps 64 … 71, the ninth patch, are written from the row of the eighth. They are like steps 32 … 39, the fifth.
    (seen,) = task.look(held)
    weights = seen[0].weights(rows=[7, 8])[0, 0]
    assert weights.argmax(1).tolist() == [4, 5]
    assert weights[[0, 1], [4, 5]].min() > 0.6


def test_an_encoder_learns_to_look_up_a_patch_by_its_key() -> None:
    learned, _ = looked_up(1000, seed=0)
    held, places = looked_up(100, seed=1)
    task = Forecast.fit(
        learned,
        validation=held,
        **{"series": "id", "context": 40, "horizon": 4, "patch_length": 8, "standardise": False},
        **{"dim": 32, "heads": 1, "layers": 1, "dropout": 0.0, "quantiles": ()},
        **{"epochs": 5, "batch_size": 50, "lr": 5e-3},
    )
    assert task.evaluate(held).values["mse"] < 0.15  # of values with variance 1
    # Of the patches before the last one, that looks most at the one that has its key.
    context = {name: [cell for i, cell in enumerate(cells) if i % 44 < 40] for name, cells in held.items()}
    looked = [int(seen[0].weights(rows=4)[0, 0, 0, :4].argmax()) for seen in task.look(context)]
    assert np.mean(np.equal(looked, places)) > 0.95


def looked_up(count: int, seed: int) -> tuple[dict[str, list], list[int]]:
    """Series of five patches, each a key and four values; the last has the key of another, whose values come next."""
    draw = np.random.default_rng(seed)
    keys, found, places = 2 * np.eye(4), list[np.ndarray](), list[int]()
    for _ in range(count):
        order, values, place = draw.permutation(4), draw.standard_normal((4, 4)), int(draw.integers(4))
        patches = [np.concatenate((keys[key], value)) for key, value in zip(order, values, strict=True)]
        found += [*patches, keys[order[place]], np.zeros(4), values[place]]
        places.append(place)
    return {"id": np.repeat(np.arange(count), 44).tolist(), "x": np.concatenate(found).tolist()}, places


# Scores.


def test_scores_are_those_worked_out_by_hand() -> None:
    sums = ForecastSums(["a"], [0.1, 0.9])
    forecast = torch.tensor([[[[1.0, 0.0, 3.0], [2.0, 1.0, 2.5]]]])  # two steps: point, quantile 0.1, quantile 0.9
    sums.add(forecast, torch.tensor([[[2.0, 4.0]]]), torch.tensor([[10.0]]), torch.tensor([[0.5]]))
    # Errors 1 and 2. Quantile 0.1: 2 and 3 too low, 0.1 of each; 0.9: 1 too high, 0.1 of it, 1.5 too low, 0.9 of it.
    assert sums.values() == pytest.approx(
        {
            "mse": (1 + 4) / 2,
            "mae": 1.5,
            "mase": 1.5 / 0.5,
            "pinball": ((0.2 + 0.3) + (0.1 + 1.35)) / 4,
            "below_0.1": 0.0,
            "below_0.9": 0.5,
            "mae_of_a": 15.0,
        }
    )


def test_naive_forecasts() -> None:
    past = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0]]])
    assert last_value(past, 3)[0, 0, :, 0].tolist() == [5, 5, 5]
    assert seasonal_naive(past, 5, 2)[0, 0, :, 0].tolist() == [4, 5, 4, 5, 4]


def test_baselines_are_scored_on_the_same_windows() -> None:
    x = [0.0, 1, 0, 1, 0, 1, 0, 1, 0]
    task = untrained({"x": x}, season=2)
    scores = task.evaluate({"x": x})
    assert scores.count == 2  # 9 rows: windows of 8 begin at rows 0 and 1
    assert list(scores.baselines) == ["last value", "seasonal naive, 2 steps"]
    assert scores.baselines["seasonal naive, 2 steps"]["mse"] == 0
    # The last value is wrong by 1 at every second step, in units of the standard deviation √(4/9 · 5/9).
    last = scores.baselines["last value"]
    assert last["mae_of_x"] == pytest.approx(0.5)
    assert last["mse"] == pytest.approx(0.5 / (20 / 81))
    assert "mase" not in last  # the seasonal naive forecast makes no error to compare with
    assert untrained({"x": x}, season=1).evaluate({"x": x}).baselines["last value"]["mase"] == pytest.approx(0.5)


def test_scores_of_several_series_are_in_the_units_of_each() -> None:
    small, large = [0.0, 1] * 4, [0.0, 100] * 4
    table = {"s": ["a"] * 8 + ["b"] * 8, "x": [*small, *large]}
    task = untrained(table, series="s", season=1)
    last = task.evaluate(table).baselines["last value"]
    assert last["mae"] == pytest.approx(1.0)  # 0.5 of a deviation of 0.5, of both
    assert last["mae_of_x"] == pytest.approx((0.5 + 50) / 2)
    assert last["mase"] == pytest.approx(0.5)


def test_a_series_that_was_not_learned_is_measured_by_itself() -> None:
    task = untrained({"s": ["a"] * 8, "x": [0.0, 1] * 4}, series="s", season=1)
    last = task.evaluate({"s": ["new"] * 8, "x": [0.0, 100] * 4}).baselines["last value"]
    assert last["mae"] == pytest.approx(1.0)


def test_the_loss_is_the_squared_error_and_the_pinball_loss() -> None:
    task = untrained({"x": np.sin(np.arange(40.0)).tolist()}, loss="mse")
    windows = task.encode(task.read({"x": np.sin(np.arange(40.0)).tolist()}, task.options))
    batch = task.collate([windows[0], windows[5]])
    total, count = task.eval().loss(batch)
    y, truth = task.model(batch["context"]), batch["future"]
    expected = (y[..., 0] - truth).square() + pinball(y[..., 1:], truth, torch.tensor([0.1, 0.5, 0.9])).mean(-1)
    torch.testing.assert_close(total / count, expected.mean())


def test_huber_is_the_square_near_0_and_twice_the_distance_far_away() -> None:
    task = untrained({"x": list(range(12))}, loss="huber", quantiles=())
    error = torch.tensor([[[0.5], [-3.0]]])
    torch.testing.assert_close(task._loss(error, torch.zeros(1, 2)), torch.tensor(0.5**2 + 2 * 3.0 - 1))


def test_in_training_each_of_both_forecasts_has_its_own_loss() -> None:
    """The linear map learns nothing from the error of the patches, nor they from its."""
    task = untrained({"x": np.sin(np.arange(40.0)).tolist()}, dropout=0.0)
    windows = task.encode(task.read({"x": np.sin(np.arange(40.0)).tolist()}, task.options))
    batch = task.collate([windows[0], windows[5]])
    nn.init.normal_(task.model.linear.weight)
    losses = [task._loss(y, batch["future"]) for y in task.model.members(batch["context"])[0]]
    torch.testing.assert_close(task.train().loss(batch)[0], (losses[0] + losses[1]) / 2)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_validation_decides_on_the_share_of_the_linear_map(share: float) -> None:
    task = untrained({"x": np.sin(np.arange(40.0)).tolist()}, dropout=0.0, horizon=4)
    held_out = task.read({"x": np.sin(np.arange(40.0)).tolist()}, task.options)
    true = task.collate(list(task.encode(held_out)))["future"]
    wrong = {0.0: (0.0, 1.0), 0.5: (1.0, -1.0), 1.0: (1.0, 0.0)}[share]
    task.model.members = lambda context: ([(true + by)[..., None] for by in wrong], None)
    assert task.settle(held_out)
    assert float(task.model.share) == share


def test_a_decoder_is_validated_on_what_it_writes_itself() -> None:
    """In training it reads the truth of the patch before; a forecast cannot."""
    x = np.sin(np.arange(40.0)).tolist()
    task = untrained({"x": x}, model="causal", horizon=4, quantiles=(), dropout=0.0, loss="mse")
    windows = task.encode(task.read({"x": x}, task.options))
    batch = task.collate([windows[0], windows[7]])
    context, truth = batch["context"], batch["future"]
    written, read = ((task.model(context, future)[..., 0] - truth).square().sum() for future in (None, truth))
    assert not torch.isclose(written, read)
    torch.testing.assert_close(task.loss(batch)[0], written)
    torch.testing.assert_close(task.train().loss(batch)[0], read)


def test_quantiles_may_be_written_in_one_text_and_in_any_order() -> None:
    assert ForecastOptions(quantiles=("0.9, 0.1", "0.5")).quantiles == ("0.9", "0.1", "0.5")
    assert ForecastOptions(quantiles=("",)).quantiles == ()
    task = untrained({"x": list(range(12))}, quantiles=("0.9,0.1",))
    row = task.predict({"x": list(range(12))})[0]
    assert list(row) == ["step", "column", "forecast", "0.1", "0.9"]
    assert row["0.1"] <= row["0.9"]


# Windows.


def test_there_is_a_window_at_every_step_and_none_spans_two_series() -> None:
    table = {"s": ["a"] * 9 + ["b"] * 8, "x": [*range(9), *range(100, 108)], "y": [*range(9), *range(8)]}
    task = untrained(table, series="s", standardise=False)
    windows = task.encode(task.read(table, task.options))
    assert len(windows) == 2 + 1
    batch = task.collate([windows[1], windows[2]])
    assert batch["context"].tolist() == [[*range(1, 7)], [*range(1, 7)], [*range(100, 106)], [*range(6)]]
    assert batch["future"].tolist() == [[7, 8], [7, 8], [106, 107], [6, 7]]
    assert windows.series.tolist() == [0, 0, 1]
    assert task.length(windows[0]) == 2 * 3  # columns, patches


def test_the_end_of_each_series_is_held_out_with_the_context_before_it() -> None:
    options = ForecastOptions(**TINY, series="s", validation_share=0.25)
    table = {"s": ["a"] * 20 + ["b"] * 9, "x": list(range(29))}
    learned, held = Forecast.split(Forecast.read(table, options), options)
    assert learned.columns[VALUE + "x"] == [*range(15), *range(20, 29)]
    assert held.columns[VALUE + "x"] == [*range(9, 20)]
    assert list(group_rows(held)) == ["a"]
    assert held.left_out == ("1 series too short to hold out a part, used for training as a whole",)


def test_the_held_out_part_is_never_learned_from() -> None:
    """Nor are scales: the end of this series is far from all that comes before."""
    x = [0.0, 1.0] * 20 + [1000.0] * 10
    options = ForecastOptions(**TINY, validation_share=0.2)
    learned, _ = Forecast.split(Forecast.read({"x": x}, options), options)
    assert Forecast.learn(learned, options).facts[""]["mean"] == [0.5]


# Use.


def test_what_is_predicted_comes_after_the_end_of_each_series() -> None:
    days = [f"2024-02-{day:02}" for day in range(20, 28)]
    table = {"s": ["a"] * 8 + ["b"] * 8, "day": days * 2, "x": [*range(8), *range(100, 108)], "y": [0, 1] * 8}
    task = untrained(table, series="s", target=("x", "y"))
    rows = task.predict(table)
    assert len(rows) == 2 * 2 * 2  # series, columns, steps
    assert list(rows[0]) == ["series", "time", "column", "forecast", "0.1", "0.5", "0.9"]
    assert [(row["series"], row["column"], row["time"]) for row in rows[:5]] == [
        ("a", "x", "2024-02-28 00:00:00"),
        ("a", "x", "2024-02-29 00:00:00"),
        ("a", "y", "2024-02-28 00:00:00"),
        ("a", "y", "2024-02-29 00:00:00"),
        ("b", "x", "2024-02-28 00:00:00"),
    ]
    assert all(row["0.1"] <= row["0.5"] <= row["0.9"] for row in rows)
    # Of series b all is 100 more than of a, and the scale is as its own: so is the forecast.
    assert rows[4]["forecast"] == pytest.approx(rows[0]["forecast"] + 100, abs=1e-4)


def test_a_prediction_is_of_the_last_context_whatever_comes_before() -> None:
    x = np.sin(np.arange(30.0))
    task = untrained({"x": x})
    assert task.predict({"x": x}) == task.predict({"x": x[-6:]})
    assert [row["step"] for row in task.predict({"x": x})] == [1, 2]


@pytest.mark.parametrize("model", ["patch", "causal"])
def test_patches_are_named_by_their_time_span(model: str) -> None:
    times = [f"2024-01-01 {hour:02}:00" for hour in range(12)]
    table = {"time": times, "x": list(range(12)), "y": [0, 1] * 6}
    task = untrained(table, model=model, horizon=4, target=("x", "y"))
    (seen,) = task.look(table)
    assert seen.tokens is not None
    assert [tokens.text for tokens in seen.tokens] == ["x", "y"]
    labels = ["01-01 06:00…01-01 07:00", "01-01 08:00…01-01 09:00", "01-01 10:00…01-01 11:00"]
    ahead = ["01-01 12:00…01-01 13:00"]  # the first of the two that are written is read for the second
    assert list(seen.tokens[1].labels) == labels + (ahead if model == "causal" else [])
    assert seen[0].shape == (2, 2, len(seen.tokens[0].labels), len(seen.tokens[0].labels))


def test_patches_without_timestamps_are_named_by_their_rows() -> None:
    task = untrained({"x": list(range(12))})
    (seen,) = task.look({"x": list(range(12))})
    assert seen.tokens[0].labels == ("6…7", "8…9", "10…11")


@pytest.mark.parametrize("model", ["patch", "causal"])
def test_a_run_that_was_kept_forecasts_the_same(model: str, tmp_path: Path) -> None:
    days = np.datetime64("2024-01-01") + np.arange(60)
    table = {
        "day": days.astype(str).tolist(),
        "x": np.sin(np.arange(60.0)).tolist(),
        "y": np.cos(np.arange(60.0)).tolist(),
    }
    task = Forecast.fit(table, out=tmp_path / "run", epochs=1, model=model, **TINY)
    again = tasks.load(tmp_path / "run")
    assert isinstance(again, Forecast)
    assert again.predict(table) == task.predict(table)
    assert again.evaluate(table) == task.evaluate(table)
    assert again.season == 7


def test_a_run_reads_times_in_the_format_of_its_training(tmp_path: Path) -> None:
    days = [f"{day:%d/%m/%Y}" for day in np.arange("2024-01-20", "2024-03-20", dtype="datetime64[D]").tolist()]
    table = {"day": days, "x": np.sin(np.arange(60.0)).tolist()}
    Forecast.fit(table, out=tmp_path / "run", epochs=1, **TINY)
    run = tasks.load(tmp_path / "run")
    # These rows alone may be of the 1st to the 6th of February, or the 2nd of January to June.
    few = {"day": days[12:18], "x": table["x"][12:18]}
    assert [row["time"] for row in run.predict(few)] == ["2024-02-07 00:00:00", "2024-02-08 00:00:00"]
    answer = run.answer_rows([run.read_row({"history": np.array(few["x"])[:, None], "time": few["day"]})])
    assert list(answer[0]["time"]) == ["2024-02-07 00:00:00", "2024-02-08 00:00:00"]


# What cannot be used.


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ({"x": [1.0, 2, 3]}, {}, "expected at least 8 rows. Received: 3; choose a smaller context or horizon"),
        ({"x": list(range(9))}, {}, "expected 10 rows or more in some series, to learn from and to hold out"),
        ({"x": [5.0] * 20}, {}, "column 'x' is constant, so there is nothing to learn"),
        ({"x": [0.1] * 20, "y": [0.0, 1] * 10}, {}, "column 'x' is constant"),
        ({"x": list(range(20))}, {"quantiles": ("0.5", "2")}, "quantiles: expected numbers between 0 and 1"),
        ({"x": list(range(20))}, {"quantiles": ("0.5", ".5")}, "quantiles: expected different numbers"),
        ({"x": list(range(20))}, {"patch_length": 7}, "patch_length: expected at most context=6"),
        ({"x": list(range(20))}, {"heads": 3}, "dim: expected a multiple of heads=3. Received: dim=8"),
        ({"x": list(range(20))}, {"model": "causal", "stride": 1}, "stride: expected patch_length=2 with model=causal"),
    ],
)
def test_what_cannot_be_learned_is_said_in_a_sentence(table: dict, options: dict, said: str) -> None:
    with pytest.raises(ArgumentError) as found:
        Forecast.fit(table, **{**TINY, **options})
    assert said in str(found.value)
    assert "\n" not in str(found.value)


def test_what_cannot_be_forecast_is_said_in_a_sentence() -> None:
    task = untrained({"x": list(range(20))})
    with pytest.raises(ArgumentError, match="there is no column 'x'"):
        task.predict({"z": list(range(20))})
    with pytest.raises(ArgumentError, match=r"expected at least 6 rows. Received: 5"):
        task.predict({"x": list(range(5))})
    with pytest.raises(DtypeError, match="data: expected the path of a CSV"):
        task.predict(7)
