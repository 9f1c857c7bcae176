"""`mask`: a picture has the mask's cells, and says what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from PIL import Image

from headwise import masks, plot
from headwise.errors import ArgumentError, DtypeError, MaskError, ShapeError
from headwise.masks import Extent, Mask

from .conftest import WORDS, cells, names, written

# name -> (mask, what plot.mask is told, which cells are filled)
SMALL: dict[str, tuple[Any, tuple[int, ...], list[list[int]]]] = {
    "causal": (masks.causal(), (3,), [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    "a step with a cache": (masks.causal(), (1, 4), [[1, 1, 1, 1]]),
    "a composition": (masks.window(0, 0) | masks.global_tokens([0]), (3,), [[1, 1, 1], [1, 1, 0], [1, 0, 1]]),
    "a mask with lengths of its own": (masks.documents([0, 1, 1]), (), [[1, 0, 0], [0, 1, 1], [0, 1, 1]]),
    "a bool tensor": (torch.tensor([[True, False], [False, True]]), (), [[1, 0], [0, 1]]),
}


@pytest.mark.parametrize("case", SMALL)
def test_a_cell_is_filled_where_attention_is_allowed(case: str) -> None:
    mask, lengths, expected = SMALL[case]
    figure = plot.mask(mask, *lengths)
    np.testing.assert_array_equal(cells(figure) == Extent.ALL, np.array(expected, dtype=bool))
    assert len(figure.axes) == 1  # no colour bar: there are no weights
    assert figure.axes[0].get_ylabel() == "query"
    assert figure.axes[0].get_xlabel() == "key"
    assert "filled: may attend" in written(figure)


def test_the_title_is_the_mask() -> None:
    assert "causal() & window(2, 0)" in written(plot.mask(masks.causal() & masks.window(2, 0), 4))
    assert "mine" in written(plot.mask(masks.causal(), 4, title="mine"))
    assert "causal()" not in written(plot.mask(masks.causal(), 4, title=""))
    assert not any("tensor" in text for text in written(plot.mask(torch.ones(2, 2, dtype=torch.bool))))


def test_one_example_and_one_head_are_drawn() -> None:
    allowed = torch.randn(2, 3, 4, 5) > 0
    figure = plot.mask(allowed, b=1, h=-1)
    np.testing.assert_array_equal(cells(figure) == Extent.ALL, allowed[1, 2].numpy())
    assert "head 2, example 1" in written(figure)
    assert "head" not in " ".join(written(plot.mask(masks.lengths([1, 2]), 2, b=1)))


def test_tokens_and_labels_name_the_sides() -> None:
    figure = plot.mask(masks.causal(), 6, tokens=WORDS)
    assert names(figure, "rows") == names(figure, "cols") == WORDS
    figure = plot.mask(masks.lengths(4), 2, 6, tokens=WORDS, row_labels=["subject", "verb"])
    assert names(figure, "rows") == ["subject", "verb"]
    assert names(figure, "cols") == WORDS


def test_lines_between_cells_only_where_cells_are_large() -> None:
    lines = {n: plot.mask(masks.causal(), n).findobj(LineCollection) for n in (8, 512)}
    assert [len(each.get_segments()) for each in lines[8]] == [7, 7]
    assert not lines[512]


def test_every_cell_of_512_can_be_told_from_its_neighbours(tmp_path: Path) -> None:
    """Every second one is filled, in the first row too: each is as wide as its neighbours, nothing lies over it."""
    figure = plot.mask(masks.dilated(2), 512, title="", out=tmp_path / "mask.png")
    box = figure.axes[0].get_position()
    width, height = figure.get_size_inches()
    with Image.open(tmp_path / "mask.png") as image:
        pixels = np.asarray(image.convert("L")).astype(int)
    side = round(box.width * width * 300)
    assert side == 1024
    top, left = (1 - box.y1) * height * 300, box.x0 * width * 300
    for row in (round(top), round(top) + 1):  # both of the first row of cells
        line = pixels[row, round(left) : round(left) + side] < 200
        assert 510 <= line.sum() <= 514
        assert (np.diff(np.flatnonzero(np.diff(line.astype(int)))) == 2).mean() > 0.99


def test_a_long_mask_is_drawn_by_blocks_and_its_matrix_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the matrix was made")

    monkeypatch.setattr(Mask, "to_bool", never)
    monkeypatch.setattr(Mask, "cells", never)
    figure = plot.mask(masks.causal(), 100_000)
    shown = cells(figure)
    block = -(-100_000 // 512)
    assert max(shown.shape) <= 512
    np.testing.assert_array_equal(np.diag(shown), np.full(len(shown), Extent.SOME))
    assert (shown[np.tril_indices(len(shown), -1)] == Extent.ALL).all()
    assert (shown[np.triu_indices(len(shown), 1)] == Extent.NONE).all()
    assert f"each cell is up to {block} × {block} pairs; filled: may attend; pale: some of them" in " ".join(
        written(figure)
    )


def test_blocks_are_those_of_one_example_and_head() -> None:
    layout = torch.eye(16).bool() ^ torch.tensor([[[False]], [[True]]])  # head 0 sees the diagonal, head 1 the others
    mask = masks.block_sparse(layout, 64) & masks.lengths([64, 1024])
    shown = cells(plot.mask(mask, 1024, b=1, h=1))
    np.testing.assert_array_equal(shown[::32, ::32] == Extent.ALL, layout[1].numpy())
    assert not (cells(plot.mask(mask, 1024, h=1))[:, 32:] != Extent.NONE).any()


def test_a_side_of_few_cells_is_not_a_line() -> None:
    box = plot.mask(masks.lengths(400), 2, 500).axes[0].get_window_extent()
    assert box.height / 200 >= 0.35


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (8, 8), (5, 30), (100, 100), (512, 512), (4000, 3000)])
def test_everything_lies_inside_a_small_figure(rows: int, cols: int) -> None:
    figure = plot.mask(masks.causal(), rows, cols, title="" if rows == 1 else None)
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= width <= 4.3
    assert box.y1 <= height <= 4.3


BAD: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "no length": (masks.causal(), (), {}, ArgumentError, r"q_len: expected the number of queries, because"),
    "a length of 0": (masks.causal(), (0,), {}, ArgumentError, r"q_len: expected an integer of at least 1"),
    "a length that is none": (masks.causal(), (4, 2.5), {}, ArgumentError, r"k_len: expected an integer .* k_len=2.5"),
    "lengths of another mask": (masks.documents([0, 1]), (3,), {}, MaskError, r"documents: the mask was made for"),
    "a float tensor": (torch.ones(2, 2), (2,), {}, DtypeError, r"expected a bool tensor, True = may attend"),
    "no mask": ("causal", (2,), {}, DtypeError, r"mask: expected a mask of headwise.masks or a bool tensor.*str"),
    "an example": (masks.lengths([1, 2]), (2,), {"b": 2}, ArgumentError, r"b must be in 0 … 1. Received: b=2"),
    "tokens": (masks.causal(), (4,), {"tokens": WORDS}, ShapeError, r"tokens: expected 4 \(rows\) or 4"),
    "labels": (masks.causal(), (4,), {"row_labels": ["a"]}, ShapeError, r"row_labels: expected 4"),
    "a file": (masks.causal(), (4,), {"out": "a.jpg"}, ArgumentError, r"out: expected a file name that ends in .png"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_sense_is_one_line(case: str) -> None:
    mask, lengths, options, error, message = BAD[case]
    with pytest.raises(error, match=message) as caught:
        plot.mask(mask, *lengths, **options)
    assert "\n" not in str(caught.value)
