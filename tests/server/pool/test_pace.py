"""How many threads a lone row gets, by the times that rows before it took."""

from __future__ import annotations

from headwise.server.pool.pace import Pace


def after(pace: Pace, rows: int, seconds: dict[int, float]) -> list[int]:
    """The threads of so many rows that take these seconds, by their number of threads."""
    chosen = []
    for _ in range(rows):
        chosen.append(pace.choose(1, 4))
        pace.took(chosen[-1], 10, seconds[chosen[-1]])
    return chosen


def test_both_are_tried_and_the_faster_one_stays() -> None:
    assert after(Pace(), 100, {1: 2.0, 4: 0.7}) == [4, 4, 1, 1, *[4] * 96]
    assert after(Pace(), 100, {1: 2.0, 4: 7.0}) == [4, 4, *[1] * 98]


def test_it_follows_the_machine() -> None:
    pace = Pace()
    after(pace, 100, {1: 2.0, 4: 0.7})
    assert after(pace, 50, {1: 2.0, 4: 9.0}) == [4, *[1] * 49]  # others began to use the cores
    chosen = after(pace, 1000, {1: 2.0, 4: 0.7})  # until they end
    assert chosen[-200:].count(4) == 199
    assert chosen.count(1) < 700


def test_who_shares_the_cores_has_no_choice() -> None:
    assert [Pace().choose(2, 2) for _ in range(3)] == [2, 2, 2]


def test_the_length_of_a_row_does_not_count() -> None:
    pace = Pace()
    for _ in range(2):
        pace.took(4, 1000, 0.7)
        pace.took(1, 10, 0.02)
    assert pace.choose(1, 4) == 4
