"""The Lines view: two columns and lines that are the weights of the record, of one head or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headwise import masks
from headwise.records import Seen

from .browser import SVG, WITHIN, kept_address, open_page, saved_svg, texts_in, told
from .texts import PIECES, record, seen_of, tokens_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser


def show(tab: Page, folder: Path, seen: Any, address: str = "") -> None:
    open_page(tab, folder, seen, f"view=lines&{address}")
    tab.wait_for_function("() => headwise.app.view.columns.shown")


def lines(tab: Page) -> dict[tuple[int, int, int], float]:
    drawn = tab.evaluate(
        "headwise.app.view.columns.drawn.map(({ head, row, col, weight }) => [head, row, col, weight])"
    )
    return {(head, row, col): weight for head, row, col, weight in drawn}


def wait_for_lines(tab: Page, rows: Sequence[int], heads: int = 1) -> None:
    tab.wait_for_function(
        """([rows, heads]) => {
            const drawn = headwise.app.view.columns.drawn;
            const found = [...new Set(drawn.map((line) => line.row))].sort((a, b) => a - b);
            return String(found) === String(rows) && new Set(drawn.map((line) => line.head)).size === heads;
        }""",
        arg=[list(rows), heads],
    )


def at_label(tab: Page, side: str, group: int) -> dict[str, float]:
    """Where in the canvas a token's label stands."""
    return tab.evaluate(
        """([side, group]) => {
            const { columns } = headwise.app.view;
            const { left, right } = columns.plot;
            return { x: side === 'rows' ? left - 12 : right + 12, y: columns.middleOf(group) - columns.range[0] };
        }""",
        [side, group],
    )


def swatch(tab: Page, name: str) -> Locator:
    return tab.locator(".swatches").get_by_text(name, exact=True)


def chosen(tab: Page) -> list[list[int]]:
    return tab.evaluate("headwise.app.view.chosen")


def test_a_line_that_ends_out_of_sight_is_named_at_the_edge(tab: Page, tmp_path: Path) -> None:
    seen = record(120)
    show(tab, tmp_path, seen_of(seen), "pinrow=0")
    wait_for_lines(tab, [0])
    weights = seen.weights(heads=0, rows=0)[0, 0, 0]
    below = tab.locator(".beyond.down button")

    def named() -> list[tuple[int, float]]:
        """The tokens that are named, with their weights."""
        return [(int(place), float(weight)) for *_, place, weight in (text.split() for text in below.all_inner_texts())]

    last = tab.evaluate("headwise.app.view.columns.sight(headwise.app.view.columns.height)[1]")
    first = next(i for i in range(120) if tab.evaluate("(i) => headwise.app.view.columns.middleOf(i)", i) > last)
    order = (weights[first:].argsort(descending=True)[:3] + first).tolist()
    assert named() == [(i, pytest.approx(weights[i].item(), abs=6e-4)) for i in order]
    assert tab.locator(".beyond.up").is_hidden()
    below.first.click()
    tab.wait_for_function(
        "(last) => headwise.app.view.columns.sight(headwise.app.view.columns.height)[1] > last", arg=last
    )
    tab.locator(".beyond.up").wait_for()
    assert order[0] not in [place for place, _ in named()]


def test_lines_are_those_of_the_largest_weights(tab: Page, tmp_path: Path) -> None:
    seen = record(6)
    show(tab, tmp_path, seen_of(seen), "head=1")
    wait_for_lines(tab, range(6))
    weights = seen.weights(heads=1)[0, 0]
    expected = {
        (0, row, col): weights[row, col].item()
        for row in range(6)
        for col in range(6)
        if weights[row, col] >= 0.02 * weights.max()
    }
    assert lines(tab) == pytest.approx(expected, abs=WITHIN)
    widths = tab.evaluate("headwise.app.view.columns.drawn.map((line) => line.t)")
    assert widths == sorted(widths), "the strongest on top"

    tab.evaluate("headwise.state.set({ heads: [[0, 2]] })")
    wait_for_lines(tab, range(6), heads=2)
    both = seen.weights(heads=[1, 2])[0]
    assert lines(tab) == pytest.approx(
        {(*map(int, at),): both[(*at,)].item() for at in (both >= 0.02 * both.max()).nonzero()}, abs=WITHIN
    )

    # Weights below the threshold and to the sink have no line.
    seen = record(6)
    show(tab, tmp_path, seen_of(seen))
    wait_for_lines(tab, range(6))
    slider = tab.get_by_label("Hide weights below")
    slider.focus()
    slider.fill("50")
    assert tab.evaluate("headwise.state.threshold") == 0.25
    tab.wait_for_function("() => headwise.app.view.columns.shown.threshold === 0.25")
    weights = seen.weights(heads=0)[0, 0]
    assert {(row, col) for _, row, col in lines(tab)} == {(*map(int, at),) for at in (weights >= 0.25).nonzero()}
    assert "threshold=0.25" in kept_address(tab)
    tab.evaluate("headwise.state.set({ threshold: 0, sink: true, scale: 'root' })")
    tab.wait_for_function("() => headwise.app.view.columns.shown.sunk === 0")
    assert {col for _, _, col in lines(tab)} == {1, 2, 3, 4, 5}


def test_heads_are_turned_on_and_off_by_their_swatches(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, seen_of(record(6), record(6)))
    assert tab.locator(".swatches button").all_inner_texts() == ["0", "1", "2"]
    swatch(tab, "2").click()
    wait_for_lines(tab, range(6), heads=2)
    assert chosen(tab) == [[0, 0], [0, 2]]
    pressed = [each.get_attribute("aria-pressed") for each in tab.locator(".swatches button").all()]
    assert pressed == ["true", "false", "true"]
    assert len(set(tab.evaluate("headwise.app.view.columns.shown.colours"))) == 2
    swatch(tab, "0").click()  # the current head: another one takes its place
    wait_for_lines(tab, range(6), heads=1)
    swatch(tab, "2").click()
    tab.get_by_text("One head is always shown").wait_for()
    assert chosen(tab) == [[0, 2]]
    for _ in "it only adds", "":
        swatch(tab, "1").click(modifiers=["Shift"])
    wait_for_lines(tab, range(6), heads=2)
    swatch(tab, "0").dblclick()
    wait_for_lines(tab, range(6), heads=1)
    assert chosen(tab) == [[0, 0]]
    tab.keyboard.press("a")
    wait_for_lines(tab, range(6), heads=3)
    tab.keyboard.press("]")
    tab.wait_for_function("() => headwise.app.view.chosen.every(([layer]) => layer === 1)")
    assert sorted(chosen(tab)) == [[1, 0], [1, 1], [1, 2]]
    assert kept_address(tab) == "view=lines&layer=1&heads=1.1%2C1.2"
    tab.keyboard.press("o")
    wait_for_lines(tab, range(6), heads=1)


def test_pointing_at_a_label_leaves_only_its_lines(tab: Page, tmp_path: Path) -> None:
    seen = record(6)
    show(tab, tmp_path, seen_of(seen))
    wait_for_lines(tab, range(6))
    canvas = tab.locator(".columns canvas")
    canvas.hover(position=at_label(tab, "rows", 2))
    wait_for_lines(tab, [2])
    found = told(tab, 2)
    weights = seen.weights(heads=0)[0, 0]
    assert found[0][1] == pytest.approx(weights[2].max().item(), abs=WITHIN)
    beside = tab.evaluate("headwise.app.view.columns.others().weights.map(([weight]) => weight)")
    np.testing.assert_allclose(beside, weights[2], atol=WITHIN)
    canvas.hover(position=at_label(tab, "cols", 4))
    tab.wait_for_function("() => headwise.app.view.columns.drawn.every((line) => line.col === 4)")
    told(tab, 4, "gets most from")
    tab.locator("h1").hover()
    wait_for_lines(tab, range(6))
    canvas.click(position=at_label(tab, "rows", 1))
    tab.locator("h1").hover()
    told(tab, 1, "pinned")
    wait_for_lines(tab, [1])
    tab.keyboard.press("Escape")
    tab.keyboard.press("ArrowDown")
    wait_for_lines(tab, [2])
    tab.keyboard.press("ArrowRight")
    told(tab, 2, "gets most from")


def test_lines_between_words_and_between_two_texts(tab: Page, tmp_path: Path) -> None:
    tokens = tokens_of(PIECES)
    words = tokens.words()
    seen = record(len(PIECES), mask=masks.causal())
    show(tab, tmp_path, seen_of(seen, tokens=tokens), "level=words")
    wait_for_lines(tab, range(len(words)))
    labels = [tab.evaluate("(i) => headwise.app.view.columns.middleOf(i)", i) for i in range(len(words))]
    assert np.diff(labels).min() >= 16, "labels have room"

    # Cross attention has a text on each side.
    both = Seen([record(4, 6, kind="cross")])
    both.tokens = {"source": [list("abcdef")], "target": [list("wxyz")]}
    show(tab, tmp_path, both)
    wait_for_lines(tab, range(4))
    assert {col for _, _, col in lines(tab)} == set(range(6))
    tab.locator(".columns canvas").hover(position=at_label(tab, "cols", 5))
    told(tab, 5, "gets most from")


def test_of_a_long_text_what_is_in_sight_is_drawn(tab: Page, tmp_path: Path) -> None:
    seen = record(400, heads=1)
    show(tab, tmp_path, seen_of(seen), "scale=log")
    tab.get_by_text("Only the strongest lines are drawn").wait_for()
    canvas = tab.locator(".columns canvas")
    assert canvas.evaluate("(canvas) => canvas.clientHeight") < 2500
    assert tab.evaluate("headwise.app.view.columns.height") > 8000
    assert len(lines(tab)) == 5000
    assert min(lines(tab).values()) >= seen.weights().flatten().sort(descending=True).values[5000].item() - WITHIN
    tab.evaluate("headwise.app.panel.scrollTop = 6000")
    tab.wait_for_function("() => headwise.app.view.columns.range[0] > 4000")
    canvas.hover(position=at_label(tab, "rows", 300))
    wait_for_lines(tab, [300])
    assert len(lines(tab)) == 400 - int((seen.weights(rows=300) < 1e-4 * seen.weights(rows=300).max()).sum())

    # A token of the address is marked and in sight.
    show(tab, tmp_path, seen_of(record(300, heads=1, mask=masks.window(290, 0))), "pinrow=280&pincol=3")
    wait_for_lines(tab, [280])
    y = tab.evaluate(
        """() => {
            const { columns } = headwise.app.view;
            return columns.element.getBoundingClientRect().top + columns.middleOf(280);
        }"""
    )
    assert 100 < y < tab.evaluate("innerHeight")

    open_page(tab, tmp_path, seen_of(record(2048, heads=1, mask=masks.window(3, 0))), "view=lines")
    tab.get_by_text("This text is too long for lines: 4,194,304 weights. See the Head view.").wait_for()
    assert tab.locator(".columns").is_hidden()


def test_the_picture_has_the_lines(tab: Page, tmp_path: Path) -> None:
    words = ["[CLS]", "دخل", "+نا", "cats", "&", "<b>", "[SEP]"]
    show(tab, tmp_path, seen_of(record(7), tokens=tokens_of(words)), "row=3&heads=0.2")
    told(tab, 3)
    image = saved_svg(tab)
    assert {"[CLS]", "cats", "&", "<b>", "layer 0 · head 0", "layer 0 · head 2"} <= {*texts_in(image)}
    curves = [each for each in image.iter(f"{SVG}path") if "C" in (each.get("d") or "")]
    assert len(curves) == len(lines(tab))
