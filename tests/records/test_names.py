"""How the numbers of layers are explained."""

from __future__ import annotations

import doctest

from headwise.records import names


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(names).failed == 0


def test_a_legend_says_which_numbers_are_alike() -> None:
    decoder = [f"decoder.{i}.{kind}" for i in range(12) for kind in ("self", "cross")]
    assert names.legend(list(enumerate(["shared", *decoder]))) == [
        "0: shared",
        "1, 3, 5, 7 … 23: decoder.*.self",
        "2, 4, 6, 8 … 24: decoder.*.cross",
    ]


def test_numbers_are_short() -> None:
    assert names.numbered([4]) == "4"
    assert names.numbered([4, 5]) == "4, 5"
    assert names.numbered(range(3, 90)) == "3 … 89"
    assert names.numbered([0, 10]) == "0, 10"


def test_a_list_says_how_much_is_left_out() -> None:
    assert names.listed(["a", "b"]) == "a, b"
    assert names.listed(["a"] * 1010, most=2) == "a, a and 1,008 more"
