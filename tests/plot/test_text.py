"""`text`: tokens in reading order, shaded by their weights."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import ft2font
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure

from headwise import masks
from headwise.errors import ArgumentError, DtypeError
from headwise.plot import text
from headwise.plot.colour import ink_on
from headwise.records import Seen
from headwise.text import Tokens

from .conftest import WORDS, make_record, make_seen, weights_of, written

shaped = pytest.mark.skipif(
    not hasattr(ft2font, "__libraqm_version__"), reason="this matplotlib does not shape text; 3.11 does"
)


def tokens_of(*parts: str, special: int = 0) -> Tokens:
    """Tokens of the text that these parts make up; spaces before a part are not its own."""
    offsets, end = [], 0
    for part in parts:
        offsets.append((end + len(part) - len(part.lstrip()), end + len(part)))
        end += len(part)
    labels = tuple(part.strip() for part in parts)
    signs = ("[CLS]",) * special
    return Tokens(
        (0,) * (special + len(parts)),
        signs + labels,
        ((0, 0),) * special + tuple(offsets),
        (True,) * special + (False,) * len(parts),
        "".join(parts),
    )


def shades(figure: Figure) -> PatchCollection:
    (found,) = (each for each in figure.axes[0].collections if each.get_array() is not None)
    return found


def pieces(figure: Figure) -> list[tuple[str, float, float]]:
    """What is drawn, where: (text, x, y)."""
    return [(each.get_text(), *each.get_position()) for each in figure.axes[0].texts if each.get_text().strip()]


def test_a_token_is_chosen_by_its_text(seen: Seen) -> None:
    chosen, numbered = text(seen, layer=1, head=2, row="on"), text(seen, layer=1, head=2, row=3)
    np.testing.assert_array_equal(shades(chosen).get_array(), shades(numbered).get_array())
    assert written(chosen) == written(numbered)
    part = text(seen, layer=1, head=2, col="cat", rows=["sat", "mat"])
    np.testing.assert_array_equal(shades(part).get_array(), weights_of(seen[1], 2)[[2, 5], 1])
    assert text(seen[1], head=2, row="b", row_labels=list("abcdef"))
    with pytest.raises(ArgumentError, match=r"^row: 'dog' is not among the tokens"):
        text(seen, layer=1, row="dog")
    with pytest.raises(ArgumentError, match=r"^row: expected a number, because the tokens are not known"):
        text(seen[1], row="on")


def test_the_keys_of_a_query_and_the_queries_of_a_key(seen: Seen) -> None:
    figure = text(seen, layer=1, head=2, row=3)
    np.testing.assert_array_equal(shades(figure).get_array(), weights_of(seen[1], 2)[3])
    assert [piece for piece, _, _ in pieces(figure)] == WORDS
    assert "layer 1, head 2: attention from “on” (query 3)" in " ".join(written(figure))
    assert "framed: the query" in written(figure)
    assert figure.axes[1].get_xlabel() == "attention weight"

    figure = text(seen, layer=0, head="mean", col=5)
    np.testing.assert_allclose(shades(figure).get_array(), seen[0].weights()[0, :, :, 5].mean(0), rtol=1e-6)
    assert "layer 0, mean of 4 heads: attention to “mat” (key 5)" in " ".join(written(figure))
    assert "framed: the key" in written(figure)


def test_ink_can_be_read_on_its_ground(seen: Seen) -> None:
    figure = text(seen, layer=1, row=0)
    grounds = shades(figure)
    for piece, weight in zip(figure.axes[0].texts[::2], grounds.get_array(), strict=True):  # spaces between
        assert piece.get_color() == ink_on(grounds.cmap(grounds.norm(weight)))


def test_the_asking_token_is_framed_where_it_stands(seen: Seen) -> None:
    def framed(figure: Figure) -> list[Any]:
        return [each for each in figure.axes[0].collections if each.get_paths() and each.get_linewidth()[0] > 1]

    figure = text(seen, layer=0, row=2)
    box = framed(figure)[0].get_paths()[0].get_extents()
    x, y = next((x, y) for piece, x, y in pieces(figure) if piece == "sat")
    half = framed(figure)[0].get_linewidth()[0] / 144  # of a line of the frame, in inches: no line crosses a letter
    assert box.x0 + half == pytest.approx(x)
    assert box.y0 < y < box.y1
    single = text(make_record(4, 4), tokens=tokens_of(*"pile"), row=2)
    box = framed(single)[0].get_paths()[0].get_extents()
    assert (box.x0 + half, box.x1 + half) == pytest.approx([x for _, x, _ in pieces(single)[2:]])
    assert not framed(text(seen, layer=0, row=2, cols=slice(3, 6)))
    cross = make_seen(1, "cross")
    cross.tokens = {"target": WORDS, "source": [word.upper() for word in WORDS]}
    assert not framed(text(cross, row=2))


@pytest.mark.parametrize("width", [1.6, 2.1, 2.6, 3.3])
def test_lines_are_wrapped_between_words(width: float) -> None:
    parts = [f" word{i}" if i % 3 else f"tail{i}" for i in range(40)]  # a tail goes on with the word before it
    figure = text(make_record(40, 40), tokens=tokens_of(*parts), row=0, width=width)
    rows: dict[float, list[tuple[str, float]]] = {}
    for piece, x, y in pieces(figure):
        rows.setdefault(y, []).append((piece, x))
    assert len(rows) > 3
    drawn = [[piece for piece, _ in row] for row in rows.values()]
    assert [piece for row in drawn for piece in row] == [part.strip() for part in parts]
    assert not any(row[0].startswith("tail") for row in drawn[1:])
    assert all([x for _, x in row] == sorted(x for _, x in row) for row in rows.values())
    assert figure.get_tightbbox().x1 <= width


def test_line_breaks_spaces_and_signs_of_the_text_are_kept() -> None:
    tokens = tokens_of("One", " two", "!\n", "Three", special=1)
    figure = text(make_record(5, 5), tokens=tokens, row=0)
    drawn = pieces(figure)
    assert [piece for piece, _, _ in drawn] == ["[CLS]", "One", "two", "!", "Three"]
    x, y = {piece: x for piece, x, _ in drawn}, {piece: y for piece, _, y in drawn}
    assert y["One"] == y["!"] < y["Three"]
    assert x["Three"] == 0
    # Only "two!" are written together.
    edges = [path.get_extents() for path in shades(figure).get_paths()]
    gaps = [after.x0 - before.x1 for before, after in itertools.pairwise(edges[:4])]
    assert [gap > 0.01 for gap in gaps] == [True, True, False]


def test_chinese_is_wrapped_between_characters() -> None:
    characters = "人工智能改变世界注意力机制很重要" * 4
    figure = text(make_record(64, 64), tokens=tokens_of(*characters), row=63, width=3.3)
    lines = {y for _, _, y in pieces(figure)}
    counts = [sum(y == line for _, _, y in pieces(figure)) for line in sorted(lines)]
    assert len(set(counts[:-1])) == 1
    assert sum(counts) == 64


@shaped
def test_right_to_left_text_begins_on_the_right() -> None:
    tokens = tokens_of("שלום", " עולם", " abc", " def", " טוב", "!")
    drawn = pieces(text(make_record(), tokens=tokens, row=0))
    order = [piece.strip("\u200f") for piece, x, _ in sorted(drawn, key=lambda each: each[1])]
    assert order == ["!", "טוב", "abc", "def", "עולם", "שלום"]
    figure = text(make_record(), tokens=tokens, row=0)
    assert max(path.get_extents().x1 for path in shades(figure).get_paths()) == pytest.approx(
        figure.axes[0].get_xlim()[1]
    )

    tokens = tokens_of("The", " words", " שלום", " עולם", " mean", " hello")
    drawn = pieces(text(make_record(), tokens=tokens, row=0))
    order = [piece.strip("\u200f") for piece, x, _ in sorted(drawn, key=lambda each: each[1])]
    assert order == ["The", "words", "עולם", "שלום", "mean", "hello"]


@shaped
def test_arabic_letters_are_joined_across_tokens() -> None:
    drawn = pieces(text(make_record(3, 3), tokens=tokens_of("بحث", "ية", " من"), row=0))
    from_the_right = [piece.strip("\u200f") for piece, _, _ in drawn[::-1]]
    assert from_the_right == ["بحث\u200d", "\u200dية", "من"]


def test_masked_tokens_and_a_hidden_sink_have_no_shade(seen: Seen) -> None:
    record = make_record(mask=masks.causal())
    figure = text(record, tokens=WORDS, row=2)
    np.testing.assert_array_equal(shades(figure).get_array(), weights_of(record)[2, :3])
    assert [len(each.get_paths()) for each in figure.axes[0].collections if each.get_hatch()] == [3]
    assert "masked, may not be attended to" in written(figure)

    figure = text(seen, layer=0, row=3, hide_sink=True)
    np.testing.assert_array_equal(shades(figure).get_array(), weights_of(seen[0])[3, 1:])
    share = f"{weights_of(seen[0])[3, 0]:.0%}"
    notes = " ".join(written(figure))
    assert f"key 0 (The) is hidden: it takes {share} of the weight; the others are not rescaled" in notes

    figure = text(seen, layer=0, row=3, cols=[0, 1, 4])
    np.testing.assert_allclose(shades(figure).get_array(), weights_of(seen[0])[3, [0, 1, 4]], rtol=1e-5)
    assert [piece for piece, _, _ in pieces(figure)] == ["The", "cat", "…", "the"]


def test_names_without_a_text_are_set_apart() -> None:
    figure = text(make_record(3, 3), row=1)
    assert [piece for piece, _, _ in pieces(figure)] == ["0", "1", "2"]
    assert "head 0: attention from query 1" in written(figure)


def test_hostile_texts_are_drawn_as_they_are() -> None:
    odd = ["$x_1$", "\x00", "\u202eevil", "<b>", "\ud800", "a" * 4000]
    figure = text(make_record(), row_labels=odd, col_labels=odd, row=0)
    drawn = [piece for piece, _, _ in pieces(figure)]
    assert drawn[:5] == ["$x_1$", "<U+0000>", "<U+202E>evil", "<b>", "<U+D800>"]
    assert drawn[5].endswith("a…")
    figure.draw_without_rendering()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ArgumentError, "expected exactly one of row= (a query and its keys) and col= (a key and its queries)"),
        ({"row": 1, "col": 1}, ArgumentError, "expected exactly one of row="),
        ({"row": 6}, ArgumentError, "row must be in 0 … 5. Received: row=6"),
        ({"col": -7}, ArgumentError, "col must be in 0 … 5. Received: col=-7"),
        ({"row": 1.5}, DtypeError, "row: expected a number or the text of a token. Received: 1.5"),
        ({"row": 1, "rows": [2]}, ArgumentError, "with row=, choose a part of the text with cols="),
        ({"col": 1, "cols": [2]}, ArgumentError, "with col=, use rows="),
        ({"col": 1, "hide_sink": True}, ArgumentError, "hide_sink: expected row="),
    ],
)
def test_what_makes_no_sense_is_one_line(
    seen: Seen, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        text(seen, layer=0, **options)
    assert message in str(caught.value)


def test_a_text_too_long_for_a_figure_says_what_to_choose() -> None:
    record = make_record(1, 4000, heads=1, key_heads=1)
    with pytest.raises(ArgumentError, match=r"expected at most 100\. Choose a part of the text: cols=slice\(0, 1000\)"):
        text(record, row=0, width=0.5)
    assert torch.isfinite(record.lse).all()
