"""The page in a real browser, without a network: what a person reads there is what the record says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from headwise import masks
from headwise.records import AttentionRecord
from headwise.viewer import TextAttention, write_page

from .conftest import HOSTILE, look, record

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

CHINESE = ["[CLS]", "那", "只", "动", "物", "没", "有", "🙂", "[SEP]"]


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Page]:
    """A tab that is offline; at its end nothing but files was asked for, and nothing went wrong on the console."""
    context = chromium.new_context(offline=True, viewport={"width": 1280, "height": 860})
    tab, trouble = context.new_page(), []
    tab.on("request", lambda request: request.url.startswith(("file:", "data:")) or trouble.append(request.url))
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    yield tab
    context.close()
    assert trouble == []


def show(tab: Page, folder: Path, *texts: TextAttention) -> None:
    path = folder / "page.html"
    write_page(path, texts, title="A page")
    tab.goto(path.as_uri())
    tab.wait_for_function("() => window.headwise?.map.plates.length")


def point(tab: Page, row: int, col: int) -> None:
    """Move the mouse onto a cell of the large map, and wait until the read-out has followed."""
    x, y = tab.evaluate("([row, col]) => headwise.map.centreOf(row, col)", [row, col])
    box = tab.locator("#map").bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + x, box["y"] + y)
    tab.wait_for_function("(cell) => document.querySelector('#cell').dataset.cell === cell", arg=f"{row},{col}")


def shown(tab: Page) -> tuple[str, float]:
    """The printed digits, and the weight in full."""
    cell = tab.locator("#cell")
    return cell.locator("b").inner_text(), float(cell.get_attribute("data-weight") or "nan")


def test_a_hovered_cell_shows_the_weight_of_the_record(tab: Page, tmp_path: Path) -> None:
    seen = record()
    show(tab, tmp_path, look(seen))
    for row, col in [(2, 5), (0, 0), (8, 8), (7, 1)]:
        point(tab, row, col)
        digits, weight = shown(tab)
        assert weight == pytest.approx(seen.weights(row, col, 0).item(), abs=1e-4)
        assert float(digits) == pytest.approx(weight, rel=1e-3)
        assert len(digits.lstrip("0.")) >= 4
        assert f"w{row} {row} → w{col} {col}" in tab.locator("#cell").inner_text()


def test_every_cell_of_every_kind_of_record(case: AttentionRecord, tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(case))
    _, heads, rows, cols = case.shape
    drawn = tab.evaluate(
        """(shape) => {
            const all = (...cell) => cell.length === shape.length
                ? headwise.weight(0, 0, ...cell)
                : Array.from({ length: shape[cell.length] }, (_, i) => all(...cell, i));
            return all();
        }""",
        [heads, rows, cols],
    )
    np.testing.assert_allclose(drawn, case.weights()[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("how", ["max", "mean"])
def test_a_tile_is_pooled_from_the_cells_it_stands_for(how: str, tab: Page, tmp_path: Path) -> None:
    seen = record(length=9, mask=masks.causal())
    show(tab, tmp_path, look(seen))
    tile = tab.evaluate(
        "async (how) => [...await headwise.source.texts[0].tile(0, 1, [1, 9], [0, 8], 3, 2, how)].map((w) => w + '')",
        how,
    )
    cells = seen.weights(slice(1, 9), slice(0, 8), 1)[0, 0]
    rows, cols = [(0, 2), (2, 5), (5, 8)], [(0, 4), (4, 8)]
    blocks = [cells[a:b, c:d] for a, b in rows for c, d in cols]
    expected = [(block.max() if how == "max" else block.mean()).item() for block in blocks]
    expected[1] = float("nan")  # rows 1, 2 and keys 4 to 7: all masked
    np.testing.assert_allclose([float(weight) for weight in tile], expected, atol=1e-4)


def test_masked_cells_say_so(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record(mask=masks.causal())))
    assert tab.locator("#masked").is_visible()
    point(tab, 2, 6)
    assert shown(tab) == ("masked", 0)
    point(tab, 6, 2)
    assert shown(tab)[1] > 0


def test_layers_and_heads_by_key_and_by_click(tab: Page, tmp_path: Path) -> None:
    seen = [record(heads=3, kv_heads=3) for _ in range(3)]
    text = TextAttention(look(*seen).tokens, seen, [4, 5, 9])
    show(tab, tmp_path, text)
    point(tab, 3, 4)
    for key, layer, head in [("]", 1, 0), (".", 1, 1), (".", 1, 2), (".", 1, 0), (",", 1, 2), ("[", 0, 2), ("[", 2, 2)]:
        tab.keyboard.press(key)
        tab.wait_for_function(
            f"() => document.querySelector('#cell').innerText.endsWith('layer {[4, 5, 9][layer]} · head {head}')"
        )
        assert shown(tab)[1] == pytest.approx(seen[layer].weights(3, 4, head).item(), abs=1e-4)
        assert (
            tab.locator("[aria-pressed=true][title^=layer]").get_attribute("title")
            == f"layer {[4, 5, 9][layer]}, head {head}"
        )
    tab.get_by_role("button", name="layer 5, head 1").click()
    tab.wait_for_function("() => document.querySelector('#cell').innerText.endsWith('layer 5 · head 1')")
    assert shown(tab)[1] == pytest.approx(seen[1].weights(3, 4, 1).item(), abs=1e-4)


def test_the_colour_bar_says_what_its_middle_stands_for(tab: Page, tmp_path: Path) -> None:
    seen = record()
    show(tab, tmp_path, look(seen))
    top = seen.weights(heads=0).max().item()
    for name, low, middle in [("square root", 0, top / 4), ("log", top / 1e4, top / 100), ("linear", 0, top / 2)]:
        tab.get_by_role("button", name=name).click()
        ticks = [float(tick.removeprefix("≤ ")) for tick in tab.locator("#ticks span").all_inner_texts()]
        assert ticks == pytest.approx([low, middle, top], rel=0.05)


def test_arrows_move_the_cell(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record()))
    point(tab, 3, 4)
    for key, cell in [("ArrowDown", "4,4"), ("ArrowRight", "4,5"), ("ArrowUp", "3,5"), ("ArrowLeft", "3,4")]:
        tab.keyboard.press(key)
        tab.wait_for_function("(cell) => document.querySelector('#cell').dataset.cell === cell", arg=cell)


def test_chinese_labels_are_whole_characters(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record(), labels=CHINESE))
    point(tab, 4, 7)
    assert [label.inner_text() for label in tab.locator("#cell bdi").all()] == ["物", "🙂"]
    assert tab.locator("#words").inner_text().split() == CHINESE


def test_a_hostile_text_is_only_text(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record(), labels=HOSTILE))
    point(tab, 0, 1)
    assert [label.text_content() for label in tab.locator("#cell bdi").all()] == HOSTILE[:2]
    assert tab.locator("img").count() == 0
    assert tab.locator("script").count() == 2  # the facts and the page's own; numbers are taken out when they are read


def test_another_text_is_picked(tab: Page, tmp_path: Path) -> None:
    first, second = record(), record(length=5, heads=3, kv_heads=1)
    show(tab, tmp_path, look(first), look(second, labels=["a", "b", "c", "d", "e"]))
    tab.get_by_role("combobox", name="Text").select_option("1")
    tab.wait_for_function("() => headwise.map.count === 5 && headwise.map.plates.length")
    point(tab, 4, 1)
    assert shown(tab)[1] == pytest.approx(second.weights(4, 1, 0).item(), abs=1e-4)
    assert tab.locator("[title^='layer 0, head']").count() == 3


def test_a_long_text_can_be_read_down_to_its_cells(tab: Page, tmp_path: Path) -> None:
    seen = record(length=1400, dim=8, mask=masks.window(300, 0))
    show(tab, tmp_path, look(seen))
    tab.locator("#map").hover(position={"x": 500, "y": 500})
    for _ in range(30):
        tab.mouse.wheel(0, -200)
    tab.wait_for_function("() => headwise.map.plates.length === 2")
    plate = tab.evaluate(
        """() => {
            const { rows, cols, height, width, weights } = headwise.map.plates[1];
            return [rows, cols, height, width, [...weights].map(String)];
        }"""
    )
    (row, past_row), (col, past_col), height, width, weights = plate
    assert (past_row - row, past_col - col) == (height, width)  # every cell by itself
    expected = seen.weights(slice(row, past_row), slice(col, past_col), 0)[0, 0]
    drawn = torch.tensor([float(weight) for weight in weights]).view(height, width)
    np.testing.assert_allclose(drawn.nan_to_num(0), expected, atol=1e-4)


def test_thumbnails_are_all_filled_and_the_page_fits_a_narrow_window(tab: Page, tmp_path: Path) -> None:
    tab.set_viewport_size({"width": 400, "height": 800})
    show(tab, tmp_path, look(*(record(heads=12, kv_heads=4, length=30) for _ in range(3))))
    tab.wait_for_function("() => document.querySelectorAll('#heads button[data-ready]').length === 36")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
