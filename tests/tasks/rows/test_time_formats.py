"""Formats of times: found from all cells, and the one that fits them; numbers that count rows."""

from __future__ import annotations

import pandas as pd
import pytest

from headwise.tasks.rows.time_formats import NUMBERS, find_count, read_times, suggest_format

HOURS = pd.date_range("2023-12-20 10:00", periods=300, freq="h")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("%Y-%m-%d %H:%M:%S", "ISO8601"),
        ("%Y-%m-%dT%H:%M", "ISO8601"),
        ("%Y/%m/%d %H:%M", "ISO8601"),
        ("%d/%m/%Y %H:%M", "%d %m %Y %H %M"),
        ("%m/%d/%Y %I:%M %p", "%m %d %Y %I %M %p"),
        ("%d.%m.%Y %H.%M.%S", "%d %m %Y %H %M %S"),
        ("%d.%m.%Y %H:%M:%S.%f", "%d %m %Y %H %M %S %f"),
        ("%d-%m-%Y %H", "%d %m %Y %H"),
        ("%Y年%m月%d日 %H时%M分", "%Y %m %d %H %M"),
        ("%Y년 %m월 %d일 %H:%M", "%Y %m %d %H %M"),
        ("%b %d, %Y %I:%M %p", "%b %d %Y %I %M %p"),
        ("%d %B %Y %H:%M", "%d %B %Y %H %M"),
        ("%a, %d %b %Y %H:%M:%S GMT", "%a %d %b %Y %H %M %S GMT"),
    ],
)
def test_the_one_format_that_fits_is_found(written: str, name: str) -> None:
    found = read_times([f"{hour:{written}}" for hour in HOURS])
    assert list(found) == [name]
    assert found[name].equals(HOURS)


@pytest.mark.parametrize(
    ("cells", "last"),
    [
        (["1/2/2024", "13/2/2024"], "2024-02-13"),
        (["2024年11月", "2024年12月"], "2024-12-01"),
        (["12/2023", "01/2024"], "2024-01-01"),
        (["Dec 2023", "May 2024"], "2024-05-01"),
        (["May 2024", "June 2024"], "2024-06-01"),
        (["2023Q4", "2024 Q1"], "2024-01-01"),
        (["01/01/2023", "01/01/2024"], "2024-01-01"),  # two formats, with the same times
        ([pd.Timestamp("2023-01-01"), pd.Timestamp("2024-01-01")], "2024-01-01"),
    ],
)
def test_other_times_that_are_certain(cells: list, last: str) -> None:
    (times,) = read_times(cells).values()
    assert str(times[-1].date()) == last


def test_formats_that_fit_alike_are_all_returned() -> None:
    assert list(read_times(["01/02/2024", "02/02/2024"])) == ["%d %m %Y", "%m %d %Y"]
    assert list(read_times(["01.02.03", "02.02.03"])) == ["%d %m %y", "%m %d %y", "%y %m %d"]


def test_a_cell_far_behind_decides() -> None:
    days = [f"{day:%d/%m/%Y}" for day in pd.date_range("2024-01-01", periods=12, freq="MS")] * 1000
    assert len(read_times(days)) == 2
    assert list(read_times([*days[:5001], "13/01/2024", *days[5001:]])) == ["%d %m %Y"]


@pytest.mark.parametrize(
    "cells", [["Mon", "Tue"], ["10:30", "10:45"], ["1.2.3", "1.2.4"], ["a", "may"], [None, ""], []]
)
def test_other_texts_are_no_times(cells: list) -> None:
    assert read_times(cells) == {}


def test_numbers_are_one_format() -> None:
    assert read_times(["2020", "2021"])[NUMBERS].tolist() == [2020, 2021]
    assert read_times([1e300, 2e300])[NUMBERS].tolist() == [1e300, 2e300]
    times = read_times(["2020", "2021", "Total"])[NUMBERS]
    assert times.notna().tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("numbers", "step"),
    [
        ([1, 2, 3, 4, 5, 6], 1),
        ([1, 2, 3, 4, 5], None),  # too few to tell
        ([6, 5, 4, 3, 2, 1], -1),
        ([1, 2, 3, 13, 14, 15], 1),
        ([1, 2, 3, 3, 4, 5], None),
        ([1, 3, 4, 8, 9, 20], None),
        ([1e308, -1e308, 1e308, 1, 2, 3], None),
    ],
)
def test_numbers_that_count_rows(numbers: list[float], step: float | None) -> None:
    assert find_count(pd.Index(numbers, dtype=float), [range(len(numbers))]) == step


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("{}.01.2024 10:00+01:00", None),
        ("{}.01.2024 10:00-10:15", None),
        ("2024-01-{} 10:00 −05:00", None),
        ("{} мая 2024", None),
        ("2024年第{}周", None),
        ("2024年1月{}日 下午3:00", 15),
        ("2024/1/{} 上午 03:00", 3),
        ("2024. 1. {}. 오후 3:00", 15),
        ("2024年1月{}日 (月) 10時30分", 10),
    ],
)
def test_what_is_no_sign_of_a_date_is_not_left_out(cell: str, expected: int | None) -> None:
    found = read_times([cell.format(day) for day in range(10, 22)])
    if expected is None:
        assert not any(times.notna().any() for times in found.values())
    else:
        (times,) = found.values()
        assert [(time.day, time.hour) for time in times] == [(day, expected) for day in range(10, 22)]


def test_months_with_a_zero_are_no_numbers() -> None:
    (times,) = read_times([f"{month:02}.2023" for month in range(6, 13)]).values()
    assert [time.month for time in times] == [*range(6, 13)]


def test_a_time_without_a_zone_among_times_with_one_is_none() -> None:
    (times,) = read_times(["2024-01-01 05:00", "2024-01-01 07:00+01:00", "2024-07-01 08:00+02:00"]).values()
    assert times.isna().tolist() == [True, False, False]


def test_numbers_of_minutes_are_no_milliseconds() -> None:
    assert suggest_format(pd.Index([202401131000, 202401131100])) == "%Y%m%d%H%M"
