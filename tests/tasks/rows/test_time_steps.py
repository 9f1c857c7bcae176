"""Steps: found in timestamps of every kind, named, continued; and what is no step at all."""

from __future__ import annotations

import pandas as pd
import pytest

from headwise.tasks.rows.time_formats import read_times
from headwise.tasks.rows.time_steps import find_step, places


def _read(cells: list) -> pd.Index:
    """The times of a column that has one format."""
    (times,) = read_times(cells).values()
    return times


@pytest.mark.parametrize(
    ("cells", "name", "season", "later"),
    [
        (["2016-07-01 00:00:00", "2016-07-01 01:00:00"], "1 hour", 24, ["2016-07-01 02:00:00", "2016-07-01 03:00:00"]),
        (["2016-07-01T00:00", "2016-07-01T00:15"], "15 minutes", 96, ["2016-07-01 00:30:00", "2016-07-01 00:45:00"]),
        (["2024-02-27", "2024-02-28"], "1 day", 7, ["2024-02-29 00:00:00", "2024-03-01 00:00:00"]),
        (["2024-01-01", "2024-01-08"], "7 days", 52, ["2024-01-15 00:00:00", "2024-01-22 00:00:00"]),
        (["2024-01-01", "2024-02-01"], "1 month", 12, ["2024-03-01 00:00:00", "2024-04-01 00:00:00"]),
        (["2023-12-31", "2024-01-31", "2024-02-29"], "1 month", 12, ["2024-03-31 00:00:00", "2024-04-30 00:00:00"]),
        (["2024-01-01", "2024-04-01", "2024-07-01"], "3 months", 4, ["2024-10-01 00:00:00", "2025-01-01 00:00:00"]),
        (
            ["2024-01-03", "2024-01-04", "2024-01-05", "2024-01-08", "2024-01-09", "2024-01-10"],
            "1 business day",
            5,
            ["2024-01-11 00:00:00", "2024-01-12 00:00:00"],
        ),
        (["2020", "2021", "2022"], "1", 1, ["2023", "2024"]),
        ([0.5, 1.0, 1.5], "0.5", 1, ["2.0", "2.5"]),
        (["7/30/2016", "7/31/2016"], "1 day", 7, ["2016-08-01 00:00:00", "2016-08-02 00:00:00"]),
        (
            ["2024-03-31T00:00+01:00", "2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00"],  # the clocks go forward
            "1 hour",
            24,
            ["2024-03-31 02:00:00+00:00", "2024-03-31 03:00:00+00:00"],
        ),
    ],
)
def test_a_step_is_found_and_continued(cells: list, name: str, season: int, later: list[str]) -> None:
    times = _read(cells)
    step = find_step(times)
    assert (str(step), step.season) == (name, season)
    assert [str(time) for time in step.after(times.tolist()[-1], 2)] == later
    assert places(times, step).tolist() == list(range(len(cells)))


def test_rows_that_are_missing_leave_places_free() -> None:
    times = _read(["2024-01-01 00:00", "2024-01-01 01:00", "2024-01-01 04:00", "2024-01-01 05:00"])
    step = find_step(times)
    assert step is not None
    assert str(step) == "1 hour"
    assert places(times, step).tolist() == [0, 1, 4, 5]
    assert step.between(times[0], times[-1]).tolist() == pd.date_range("2024-01-01", periods=6, freq="h").tolist()


def test_there_may_be_no_step() -> None:
    times = _read(["2024-01-01 00:00", "2024-01-01 01:00", "2024-01-01 02:00", "2024-01-01 02:07"])
    assert find_step(times) is None
    assert find_step(times[:1]) is None


@pytest.mark.parametrize("cells", [["a"], ["2024-01-01", ""], ["2024-01-01", None], ["", ""], [float("nan")], ["inf"]])
def test_what_is_no_time_is_none(cells: list) -> None:
    assert not any(times.notna().all() for times in read_times(cells).values())
