"""Which rows share a batch, by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from headwise.server.pool.rows import Request, Waiting, alike, measure_row, take_oldest


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def waiting(loop: asyncio.AbstractEventLoop, *lengths: int) -> list[Waiting]:
    return Request(loop.create_future(), "batch", [{"text": "x" * length} for length in lengths], 0.0).rows


# A row costs its characters and 32.
@pytest.mark.parametrize(
    ("lengths", "most", "taken"),
    [
        ([5], 4, [5]),
        ([5, 7, 6], 1, [5]),
        ([0, 32, 33], 8, [0, 32]),  # 32, 64 and 65: one more than twice as much
        ([100, 10, 90, 1000, 110], 8, [90, 100, 110]),  # 142 is more than twice 42
        ([1000, 10, 20, 900], 8, [900, 1000]),
        ([200, 210, 195, 400, 190], 3, [190, 195, 200]),  # 210 pads two others, 190 only itself
        ([32, 10, 90, 95, 99], 8, [10, 32]),  # 42 … 64, so that 122 is too long for it
    ],
)
def test_the_first_row_and_those_nearest_to_it(
    loop: asyncio.AbstractEventLoop, lengths: list[int], most: int, taken: list[int]
) -> None:
    rows = waiting(loop, *lengths)
    batch = alike(rows, most)
    assert rows[0] in batch
    assert [row.size - 32 for row in batch] == taken


def test_without_padding_the_first_rows_share_a_batch_up_to_the_budget(loop: asyncio.AbstractEventLoop) -> None:
    rows = waiting(loop, 1, 16_000, 16_000, 700, 1)  # with 32 for each: 33, 16 065, 32 097, 32 829 of 32 768
    assert take_oldest(rows, 9) == rows[:3]
    assert take_oldest(rows, 2) == rows[:2]
    assert take_oldest(rows[3:], 9) == rows[3:]
    assert take_oldest(waiting(loop, 10**6, 1), 9)[0].size == 10**6 + 32  # a row above the budget comes alone
    assert len(take_oldest(waiting(loop, 10**6, 1), 9)) == 1


def test_a_padded_batch_keeps_to_the_budget_too(loop: asyncio.AbstractEventLoop) -> None:
    rows = waiting(loop, 10_000, 10_500, 9_500, 10_000)
    assert [row.size - 32 for row in alike(rows, 9)] == [9_500, 10_000, 10_000]  # 4 of 10 032 are more than 32 768
    assert len(alike(waiting(loop, 20_000, 20_000), 9)) == 1


def test_rows_of_one_length_stay_in_order(loop: asyncio.AbstractEventLoop) -> None:
    rows = waiting(loop, 8, 8, 8, 8, 8)
    assert alike(rows, 3) == rows[:3]


def test_the_size_of_a_row_counts_characters_and_elements_but_not_the_bytes_of_an_image() -> None:
    assert measure_row({"text": "four", "other": "six by"}) == 10
    assert measure_row({"ids": np.zeros((2, 3)), "number": 7.5}) == 7
    assert measure_row({"image": b"\x00" * 1000, "flag": True}) == 2
