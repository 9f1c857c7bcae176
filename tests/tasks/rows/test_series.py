"""Series from tables: which columns, in what order; and a sentence for all that cannot be read as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    assert data.left_out == (
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
