"""The tokens of an image, counted by hand."""

from __future__ import annotations

import pytest

from headwise.errors import ArgumentError
from headwise.text import Patches


def test_row_by_row_behind_the_prefix() -> None:
    grid = Patches(2, 3)
    assert len(grid) == 7
    assert grid.labels == ("[CLS]", "(0, 0)", "(0, 1)", "(0, 2)", "(1, 0)", "(1, 1)", "(1, 2)")
    assert [grid.position(i) for i in range(7)] == [None, (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert grid.index(1, 0) == 4


@pytest.mark.parametrize("prefix", [(), ("[CLS]",), ("[CLS]", "[REG1]", "[REG2]")], ids=len)
def test_there_and_back(prefix: tuple[str, ...]) -> None:
    grid = Patches(3, 5, prefix=prefix)
    for row in range(3):
        for col in range(5):
            assert grid.position(grid.index(row, col)) == (row, col)
            assert grid.labels[grid.index(row, col)] == f"({row}, {col})"
    assert grid.labels[: len(prefix)] == prefix
    assert len(grid) == len(grid.labels) == 15 + len(prefix)


def test_of_an_image() -> None:
    assert Patches.of_image((224, 224), patch=16) == Patches(14, 14)
    assert Patches.of_image((32, 48), patch=(16, 8), prefix=()) == Patches(2, 6, prefix=())


def test_as_tokens() -> None:
    grid = Patches(1, 2)
    tokens = grid.tokens()
    assert tokens.labels == grid.labels
    assert tokens.special == (True, False, False)
    assert tokens.word_ids == (None, None, None)
    assert tokens.patches is grid
    assert tokens.words().spans == tokens.sentences().spans == ((0,), (1,), (2,))
    assert tokens.words().labels == grid.labels


@pytest.mark.parametrize(("image", "patch"), [((224, 225), 16), ((230, 224), 16), ((0, 16), 16), ((16, 16), 0)])
def test_an_image_that_does_not_divide(image: tuple[int, int], patch: int) -> None:
    with pytest.raises(ArgumentError, match=rf"{image[0]} × {image[1]} pixels cannot be divided .* {patch} × {patch}"):
        Patches.of_image(image, patch=patch)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match=r"at least 1 row and 1 column\. Received: 0 × 3"):
        Patches(0, 3)
    with pytest.raises(ArgumentError, match=r"patches: expected a tuple of names, \('\[CLS\]',\)"):
        Patches(2, 2, prefix="[CLS]")  # type: ignore[arg-type]
    for token in (-1, 5):
        with pytest.raises(ArgumentError, match=rf"one of the tokens 0 … 4\. Received: token={token}"):
            Patches(2, 2).position(token)
    for place in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(ArgumentError, match=r"expected rows 0 … 1, columns 0 … 1\. Received: "):
            Patches(2, 2).index(*place)
