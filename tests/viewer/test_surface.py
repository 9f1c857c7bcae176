"""The 3-D view: steps as high as the weights of the record, the nearest in front, turned, zoomed and pointed at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import headwise
from headwise import masks
from headwise.records import Seen

from .browser import open_page, saved_svg, texts_in
from .conftest import look, record

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def show(tab: Page, folder: Path, seen: Seen, address: str = "") -> None:
    open_page(tab, folder, seen, f"view=surface&{address}")
    tab.wait_for_function("() => headwise.app.view.scene")


def heights(tab: Page) -> np.ndarray:
    """Of the steps, as shares of the highest."""
    return np.array(
        tab.evaluate(
            """() => {
                const { scene } = headwise.app.view;
                const all = (axis) => Array.from({ length: axis.length }, (_, i) => i);
                return all(scene.rows).map((row) => all(scene.cols).map((col) => scene.z(row, col) / 0.85));
            }"""
        )
    )


def seen_from(tab: Page) -> dict[str, Any]:
    return tab.evaluate("headwise.app.view.seen")


def over(tab: Page, row: int, col: int) -> dict[str, float]:
    """Where in the canvas the top of a step is."""
    return tab.evaluate(
        """([row, col]) => {
            const { scene, view } = headwise.app.view;
            const [x, y] = view.at(scene.x(col + 0.5), scene.y(row + 0.5), scene.z(row, col));
            return { x, y };
        }""",
        [row, col],
    )


def test_the_steps_are_as_high_as_the_weights(tab: Page, tmp_path: Path) -> None:
    seen = record(mask=masks.causal())
    show(tab, tmp_path, look(seen, record()), "head=1")
    weights = seen.weights(heads=1)[0, 0]
    np.testing.assert_allclose(heights(tab), weights / weights.max(), atol=2e-4)
    assert tab.get_by_text("Grey: masked.").is_visible()
    tab.evaluate("headwise.state.set({ layer: 1, head: 0 })")
    tab.wait_for_function("() => headwise.app.view.known.layer === 1")
    assert (heights(tab) > 0).all()

    # The sink and small weights can be hidden.
    seen = record()
    show(tab, tmp_path, look(seen))
    tab.keyboard.press("h")  # no button: no head of random numbers has a sink
    tab.wait_for_function("() => headwise.app.view.scene.cols.length === 8")
    weights = seen.weights()[0, 0, :, 1:]
    np.testing.assert_allclose(heights(tab), weights / weights.max(), atol=2e-4)
    tab.evaluate("headwise.state.set({ threshold: 0.15 })")
    left = weights.where(weights >= 0.15, 0)
    np.testing.assert_allclose(heights(tab), left / weights.max(), atol=2e-4)

    # A long matrix is pooled by its largest weights.
    seen = record(length=150)
    show(tab, tmp_path, look(seen))
    assert tab.get_by_text("Each step is the largest of up to 3 × 3 weights.").is_visible()
    weights = seen.weights()[0, 0].numpy()
    cuts = np.arange(64) * 150 // 64
    pooled = np.maximum.reduceat(np.maximum.reduceat(weights, cuts, 0), cuts, 1)
    np.testing.assert_allclose(heights(tab), pooled / pooled.max(), atol=2e-4)
    row, col = divmod(int(weights.argmax()), 150)
    step = [int(np.searchsorted(cuts, place, "right")) - 1 for place in (row, col)]
    tab.locator(".surface canvas").hover(position=over(tab, *step))  # type: ignore[arg-type]
    tab.locator(f'.tip[data-cell="{row},{col}"]').wait_for()  # the cell of the largest weight of that block

    # A pair that is named by the page or the reader has its own weight, and the block is said to be one.
    row, col = 99, 20
    assert weights[row, col] < pooled[42, 8]  # rows 98 and 99, columns 18 to 20
    show(tab, tmp_path, look(seen), f"pinrow={row}&pincol={col}")
    tab.locator(f'.tip[data-cell="{row},{col}"]').wait_for()
    assert float(tab.locator(".tip b").inner_text()) == pytest.approx(weights[row, col], abs=1e-4)
    said, _, most = tab.locator(".tip .block").inner_text().rpartition(" ")
    assert (said, float(most)) == ("the largest of 2 × 3 is", pytest.approx(pooled[42, 8], abs=1e-4))
    names = tab.evaluate("() => headwise.app.view.chosen.names")
    assert names == [f"w{row}", f"w{col}"]


def test_it_is_turned_zoomed_and_pointed_at(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record()))
    first = seen_from(tab)
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowUp")
    turned = seen_from(tab)
    assert (turned["turn"] < first["turn"], turned["tilt"] > first["tilt"]) == (True, True)
    tab.keyboard.press("0")
    assert seen_from(tab) == first
    tab.keyboard.press("+")
    assert seen_from(tab)["zoom"] > 1
    tab.keyboard.press("-")
    assert seen_from(tab)["zoom"] == pytest.approx(1)
    box = tab.locator(".surface canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + 90, y - 40, steps=3)
    tab.mouse.up()
    dragged = seen_from(tab)
    assert (dragged["turn"] < first["turn"], dragged["tilt"] < first["tilt"]) == (True, True)
    assert tab.evaluate("headwise.state.pinRow") is None, "a drag is no click"
    tab.mouse.wheel(0, -300)
    tab.wait_for_function("() => headwise.app.view.seen.zoom > 1.5")
    tab.get_by_role("button", name="reset").click()
    assert seen_from(tab) == first

    # Pointing at a step names it.
    seen = record()
    show(tab, tmp_path, look(seen))
    weights = seen.weights()[0, 0]
    row, col = divmod(int(weights.argmax()), 9)
    canvas = tab.locator(".surface canvas")
    canvas.hover(position=over(tab, row, col))  # type: ignore[arg-type]
    tip = tab.locator(f'.tip[data-cell="{row},{col}"]')
    tip.wait_for()
    assert tip.inner_text().startswith(f"w{row} {row} → w{col} {col} ")
    assert float(tip.get_attribute("data-weight") or "nan") == pytest.approx(weights.max().item(), abs=1e-4)
    tab.locator(f'#cell[data-cell="{row},{col}"]').wait_for()
    canvas.click(position=over(tab, row, col))  # type: ignore[arg-type]
    tab.wait_for_function(
        "([row, col]) => headwise.state.pinRow === row && headwise.state.pinCol === col", arg=[row, col]
    )
    tab.keyboard.press("Shift+ArrowDown" if row < 8 else "Shift+ArrowUp")
    tab.locator(f'.tip[data-cell="{row + 1 if row < 8 else row - 1},{col}"]').wait_for()


def test_the_picture_and_the_python(tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(record(), record(), labels=["&", "<b>", *(f"w{i}" for i in range(2, 9))])
    show(tab, tmp_path, seen, "head=1")
    assert {"&", "<b>", "w8", "queries", "keys"} <= {*texts_in(saved_svg(tab))}
    monkeypatch.chdir(tmp_path)
    exec(tab.evaluate("headwise.app.view.python()"), {"seen": seen, "headwise": headwise})
    assert (tmp_path / "attention.pdf").stat().st_size > 1000
