"""The order of pieces on a line: small lines that a reader can check by hand."""

from __future__ import annotations

import pytest

from headwise.plot.bidi import arrange, find_direction, joins


@pytest.mark.parametrize(
    ("texts", "base", "expected"),
    [
        (["a", " ", "b"], "L", ["a", " ", "b"]),
        (["א", " ", "ב"], "R", ["ב", " ", "א"]),
        (["a", " ", "א", " ", "ב", " ", "b"], "L", ["a", " ", "ב", " ", "א", " ", "b"]),
        (["א", " ", "a", " ", "b", " ", "ב"], "R", ["ב", " ", "a", " ", "b", " ", "א"]),
        (["א", " ", "20", "26", " ", "ב", "."], "R", [".", "ב", " ", "20", "26", " ", "א"]),
        (["(", "א", ")", "a"], "L", ["(", "א", ")", "a"]),
        ([], "L", []),
    ],
)
def test_lines(texts: list[str], base: str, expected: list[str]) -> None:
    assert [texts[i] for i, _ in arrange(texts, base)] == expected  # type: ignore[arg-type]


def test_signs_go_the_way_of_their_neighbours() -> None:
    assert arrange(["א", "(", "ב", "a"], "L") == [(2, "R"), (1, "R"), (0, "R"), (3, "L")]


def test_a_text_has_the_direction_of_most_of_its_words() -> None:
    assert find_direction(["א", "ב", "a", "."]) == "R"
    assert find_direction(["א", "a", "b"]) == "L"
    assert find_direction(["1", "!"]) == "L"


def test_only_arabic_letters_join() -> None:
    assert joins("بحث", "ية")
    assert not joins("א", "ב")
    assert not joins("ب", "a")
