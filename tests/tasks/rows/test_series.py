"""Series from tables: which columns, in what order; and a sentence for all that cannot be read as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.errors import ArgumentError
from headwise.tasks.options.forecast import ForecastOptions
from headwise.tasks.rows.series import SERIES, TIME, VALUE, group_rows, list_channels, read_series, read_step
from headwise.tasks.rows.tables import Data


def read(source: Any, *, least: int = 1, **options: Any) -> Data:
    return read_series(source, ForecastOptions(**options), least=least)


def hours(*numbers: int) -> list[str]:
    return [f"2024-01-01 {number:02}:00" for number in numbers]


def test_the_columns_of_a_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_text("city,date,load,heat\nOslo,2024-01-01,1,0.5\nOslo,2024-01-02,2,-1e3\nOslo,2024-01-03,3,7\n")
    data = read(path)
    assert list_channels(data) == ["load", "heat"]
    assert data.columns[VALUE + "heat"] == [0.5, -1000.0, 7.0]
    assert [str(time) for time in data.columns[TIME]][-1] == "2024-01-03 00:00:00"
    assert data.numbers == [2, 3, 4]
    assert str(read_step(data)) == "1 day"


def test_targets_are_taken_in_the_order_in_which_they_are_named() -> None:
    table = {"a": [1, 2], "b": [3, 4], "c": [5, 6]}
    assert list_channels(read(table, target=("c", "a"))) == ["c", "a"]


def test_rows_of_several_series_may_be_mixed() -> None:
    data = read({"shop": ["n", "s", "n", "s"], "time": hours(0, 0, 1, 1), "x": [1, 10, 2, 20]}, series="shop")
    assert group_rows(data) == {"n": [0, 1], "s": [2, 3]}
    assert data.columns[VALUE + "x"] == [1, 2, 10, 20]
    assert data.columns[SERIES] == ["n", "n", "s", "s"]
    assert data.numbers == [0, 2, 1, 3]


def test_a_series_has_one_name_whatever_it_is_read_from() -> None:
    for shops in ([1.0, 2.0] * 2, ["1.0", "2.0"] * 2, [1, 2] * 2):
        data = read({"shop": shops, "time": hours(0, 0, 1, 1), "x": [1, 10, 2, 20]}, series="shop")
        assert group_rows(data) == {"1": [0, 1], "2": [2, 3]}


def test_a_list_is_no_missing_number() -> None:
    with pytest.raises(ArgumentError, match="column 'x' holds a list in row 1, expected a number"):
        read({"x": [1, [2], 3]}, target=("x",))


def test_series_that_are_too_short_are_left_out_and_counted() -> None:
    data = read({"shop": list("aabc"), "x": [1, 2, 3, 4]}, series="shop", least=2)
    assert list(group_rows(data)) == ["a"]
    assert data.left_out[1:] == (
        "2 series left out: expected at least 2 rows. Received: 1; choose a smaller context or horizon ('b', 'c')",
    )


def test_rows_are_sorted_where_that_is_said() -> None:
    table = {"time": hours(2, 0, 1), "x": [30, 10, 20]}
    assert read(table, sort=True).columns[VALUE + "x"] == [10, 20, 30]


def test_gaps_are_filled_where_that_is_said() -> None:
    # Hour 1 has no number, hours 3 and 4 have no row; what comes before the first number is like it.
    table = {"time": hours(0, 1, 2, 5, 6), "x": [1, None, 3, 6, 7], "y": [None, 2, 2, 2, 5]}
    data = read(table, interpolate=True)
    assert data.columns[VALUE + "x"] == pytest.approx([1, 2, 3, 4, 5, 6, 7])
    assert data.columns[VALUE + "y"] == pytest.approx([2, 2, 2, 2, 2, 2, 5])
    assert [time.hour for time in data.columns[TIME]] == [0, 1, 2, 3, 4, 5, 6]


def test_timestamps_may_be_left_out_of_account() -> None:
    data = read({"time": hours(0, 1, 5, 4), "x": [1, 2, 3, 4]}, time="none")
    assert TIME not in data.columns
    assert list_channels(data) == ["x"]


DAYS = pd.date_range("2024-01-20", periods=30)
LOAD = [float(row * 7 % 5) for row in range(30)]


def test_the_use_of_every_column_is_said_in_a_line() -> None:
    table = {"day": [f"{day:%d/%m/%Y}" for day in DAYS], "city": ["Oslo"] * 30, "load": LOAD, "end": ["?"] * 30}
    assert read(table).left_out == (
        "columns of the dict: time: 'day' (%d %m %Y); series: none; forecast: 'load'; not used: 'city', 'end'",
    )
    assert read({"shop": ["a"] * 30, "load": LOAD}, series="shop").left_out == (
        "columns of the dict: time: none, rows are counted; series: shop; forecast: 'load'; not used: none",
    )
    later = read_series(table, ForecastOptions(), least=1, columns=["load"])
    assert later.left_out == ()  # what is read after the training has the columns of the training


def test_a_column_of_times_that_is_certain_goes_before_one_that_is_not() -> None:
    data = read({"sold": ["01/02/2024", "02/02/2024"], "seen": ["2024-03-01", "2024-03-02"], "x": [5, 3]})
    assert (data.time, data.time_format) == ("seen", "ISO8601")


def test_times_after_training_are_read_in_the_format_of_the_training() -> None:
    day = [f"{day:%d/%m/%Y}" for day in DAYS]
    data = read({"day": day, "load": LOAD})
    assert (data.time, data.time_format) == ("day", "%d %m %Y")
    options = ForecastOptions(time=data.time, time_format=data.time_format)
    # The 1st to the 7th of February alone may be the 2nd of January to July.
    few = read_series({"day": day[12:19], "load": LOAD[:7]}, options, least=1, columns=["load"])
    assert [str(time.date()) for time in few.columns[TIME]][-1] == "2024-02-07"
    # Another format that is certain is taken, too.
    other = {"day": [f"{day:%Y-%m-%d}" for day in DAYS], "load": LOAD}
    assert str(read_series(other, options, least=1, columns=["load"]).columns[TIME][-1].date()) == "2024-02-18"


@pytest.mark.parametrize("advised", ["--interpolate", "--sort", "--time none"])
def test_after_training_advice_is_for_another_training(advised: str) -> None:
    hour = {"--interpolate": [0, 1, 2, 5], "--sort": [0, 2, 1, 3], "--time none": [0, 1, 2, 5]}[advised]
    with pytest.raises(ArgumentError, match=f"train again with --.*{advised[2:]}"):
        read_series({"t": hours(*hour), "x": [1, 2, 3, 4]}, ForecastOptions(), least=1, columns=["x"])


SECONDS = [1704067200 + 3600 * row for row in range(40) if not 10 <= row < 20]  # some hours are missing


@pytest.mark.parametrize(
    ("cells", "advised"),
    [
        (SECONDS, "--time t --time-format unix"),
        ([1000 * each for each in SECONDS], "--time t --time-format unix-ms"),
        (list(map(str, SECONDS)), "--time t --time-format unix"),
        (SECONDS[::-1], "--time t --time-format unix --sort"),
        (list(range(1990, 2020)), "--time t"),
        ([float(year) for year in range(1990, 2020)], "--time t"),
        ([f"{day:%Y%m%d}" for day in DAYS], "--time t --time-format %Y%m%d"),
        ([int(f"{day:%Y%m}") for day in pd.date_range("2024-01-01", periods=30, freq="MS")], "--time-format %Y%m"),
        ([f"{row * 0.1:.1f}" for row in range(30)], "--time t"),
        ([*map(str, range(29)), "Total"], "--time t"),
        ([row // 2 for row in range(30)], None),  # several series would be named by --series
        ([row * row for row in range(30)], None),
    ],
)
def test_numbers_that_count_rows_are_not_forecast_unasked(cells: list, advised: str | None) -> None:
    table = {"t": cells, "load": LOAD}
    if advised is None:
        assert read(table).left_out[0].endswith("forecast: 't', 'load'; not used: none")
        return
    for options in ({}, {"target": ("load",)}):
        with pytest.raises(
            ArgumentError, match=r"column 't' counts rows, mostly by .*; expected --time. Pass "
        ) as found:
            read(table, **options)
        assert f"{advised} if it holds the times" in str(found.value)
    assert read(table, time="none").left_out[0].endswith("forecast: 'load'; not used: 't'")
    if "Total" in cells:
        with pytest.raises(ArgumentError, match="column 't' holds 'Total' in row 29, expected timestamps such as 0"):
            read(table, time="t")
    else:  # what is advised is right
        assert list_channels(read(table, time="none", target=("t",))) == ["t"]
        words = advised.split()
        written = words[words.index("--time-format") + 1] if "--time-format" in words else None
        data = read(table, time="t", time_format=written, sort="--sort" in words, interpolate=True)
        assert list_channels(data) == ["load"]
        assert len(data) == (40 if "unix" in advised else 30)


def test_numbers_that_count_the_rows_of_each_series_are_not_forecast_unasked() -> None:
    table = {"shop": list("ab") * 15, "year": [1990 + row // 2 for row in range(30)], "load": LOAD}
    with pytest.raises(ArgumentError, match="column 'year' counts rows, mostly by 1"):
        read(table, series="shop")
    assert read(table, series="shop", time="year").time == "year"


def test_a_count_alone_is_what_there_is_to_forecast() -> None:
    assert list_channels(read({"day": [f"{day:%Y-%m-%d}" for day in DAYS], "x": list(range(30))})) == ["x"]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            [*(f"{day:%Y-%m-%d}" for day in DAYS[:29]), "Total"],
            "column 't' holds 'Total' in row 29, expected timestamps such as 2024-01-20; correct or remove that row, "
            "pass --time t --time-format FORMAT, or --time none",
        ),
        (
            ["", *(f"{day:%d.%m.%Y}" for day in DAYS[:29])],
            "holds nothing in row 0, expected timestamps such as 20.01.2024",
        ),
        (
            [f"01/{1 + row % 12:02}/{2020 + row // 12}" for row in range(30)],
            "column 't' holds '01/02/2020' in row 1, expected 2020-02-01 (%d %m %Y) or 2020-01-02 (%m %d %Y); all its "
            "cells fit both, pass --time t --time-format FORMAT",
        ),
    ],
)
def test_times_of_no_certain_format_are_refused(cells: list[str], said: str) -> None:
    with pytest.raises(ArgumentError) as found:
        read({"t": cells, "load": LOAD})
    assert said in str(found.value)
    assert list_channels(read({"t": cells, "load": LOAD}, time="none")) == ["load"]


def test_a_format_is_said(tmp_path: Path) -> None:
    months = [f"01/{1 + row % 12:02}/{2020 + row // 12}" for row in range(30)]
    data = read({"t": months, "load": LOAD}, time="t", time_format="%d/%m/%Y")
    assert str(read_step(data)) == "1 month"
    with pytest.raises(ArgumentError, match="holds 'x' in row 1, expected timestamps such as 01/01/2020"):
        read({"t": ["01/01/2020", "x"], "x": [1, 2]}, time="t", time_format="%d/%m/%Y")
    for options in ({"time": "t", "time_format": "days"}, {"time_format": "%Y"}, {"time": "none", "time_format": "%Y"}):
        with pytest.raises(ArgumentError, match="time_format: expected a format such as %d/%m/%Y"):
            ForecastOptions(**options)


def test_numbers_that_may_be_dates_are_not_filled_without_a_word() -> None:
    table = {"month": [202311, 202312, 202401], "x": [1, 2, 4]}
    with pytest.raises(ArgumentError, match=r"88 rows are missing.*; if they are dates, pass --time-format %Y%m"):
        read(table, time="month")


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ({"x": ["1", "2", "much"]}, {"target": ("x",)}, "column 'x' holds 'much' in row 2, expected a number"),
        ({"x": [1, float("inf")]}, {}, "column 'x' holds inf in row 1, expected a number"),
        ({"x": ["a", "b"]}, {}, "no column holds only numbers; there are 'x'; name those to forecast with --target"),
        ({"x": [1, 2]}, {"target": ("z",)}, "there is no column 'z'. The columns are: 'x'"),
        ({"x": [1, 2]}, {"time": "t"}, "there is no column 't'. The columns are: 'x'"),
        ({"x": [1, 2]}, {"series": "s"}, "there is no column 's'. The columns are: 'x'"),
        ({"t": ["2024-01-01", "soon"], "x": [1, 2]}, {"time": "t"}, "column 't' holds 'soon' in row 1"),
        ({"t": hours(0, 2, 1), "x": [1, 2, 3]}, {}, "timestamps are out of order"),
        ({"t": hours(0, 1, 1), "x": [1, 2, 3]}, {}, "timestamp 2024-01-01 01:00:00 comes twice, in row 1 and row 2"),
        (
            {"t": [*hours(0, 1, 2, 3), "2024-01-01 03:07"], "x": [1, 2, 3, 4, 5]},
            {},
            "the time step is irregular: row 4 has 2024-01-01 03:07:00 after 2024-01-01 03:00:00, most steps are "
            "0 days 01:00:00",
        ),
        (
            {"t": hours(0, 1, 2, 5), "x": [1, 2, 3, 4]},
            {},
            "2 rows are missing, the first before row 3: 2024-01-01 05:00:00 comes after 2024-01-01 02:00:00, and the "
            "step is 1 hour; pass --interpolate",
        ),
        ({"x": [1, None, None]}, {}, "2 cells have no number, the first in row 1"),
        ({"x": [1, 2], "y": [None, None]}, {"target": ("y",), "interpolate": True}, "column 'y' has no numbers"),
        ({"x": [1, 2, 3]}, {"least": 4}, "expected at least 4 rows. Received: 3; choose a smaller context or horizon"),
        ({"s": ["a", "a", "b"], "t": hours(0, 1, 0), "x": [1, None, 3]}, {"series": "s"}, "series 'a': 1 cell has no"),
        ({"s": ["a", "b"], "x": [1, 3]}, {"series": "s", "least": 2}, "'a', 'b': expected at least 2 rows"),
        ({"x": []}, {}, "there are no rows in it"),
    ],
)
def test_what_is_no_series_is_said_in_a_sentence(table: dict, options: dict, said: str) -> None:
    with pytest.raises(ArgumentError) as found:
        read(table, **options)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


def test_series_with_different_steps_are_refused() -> None:
    table = {"s": list("aabb"), "t": [*hours(0, 1), "2024-01-01", "2024-01-02"], "x": [1, 2, 3, 4]}
    with pytest.raises(ArgumentError, match=r"expected one time step in all series. Received: 1 hour in 'a' and 1 day"):
        read_step(read(table, series="s"))
