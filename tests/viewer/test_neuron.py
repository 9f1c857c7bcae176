"""The Neuron view: every number from the elements of q and k to the weight, and the same as a workbook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headwise import masks
from headwise.records import Seen
from headwise.records.terms import head_row
from headwise.viewer import inputs_of
from headwise.viewer.server import serving
from tests.worksheet.workbook import Workbook

from .browser import open_page
from .conftest import look, record
from .test_modules import rich

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.browser


def show(tab: Page, folder: Path, seen: Seen, address: str = "") -> None:
    open_page(tab, folder, seen, f"view=neuron&{address}")
    tab.locator(".view-neuron .pair[data-weight]").wait_for()


def shown(tab: Page, row: int, col: int) -> float:
    """The weight of a pair, once it is shown."""
    pair = tab.locator(f'.view-neuron .pair[data-cell="{row},{col}"]')
    return float(pair.get_attribute("data-weight") or "nan")


def steps(tab: Page) -> dict[str, float]:
    lines = tab.locator(".view-neuron .steps tr")
    return {
        line.locator("th").inner_text(): float(line.locator(".number").get_attribute("title") or "nan")
        for line in lines.all()
    }


def test_the_steps_are_those_of_the_record(tab: Page, tmp_path: Path) -> None:
    seen = rich()
    show(tab, tmp_path, look(seen), "head=3&row=5&col=2")
    weights = seen.weights(heads=3, rows=5)[0, 0, 0]
    assert shown(tab, 5, 2) == pytest.approx(weights[2].item(), abs=1e-4)
    assert "rounded in this file: the weight is within 0.0001" in tab.locator(".accuracy").inner_text()
    found = steps(tab)  # js/neuron.test.mjs has their numbers
    assert list(found) == [
        *("Sum of the products", "Scale", "Softcap", "Bias", "Mask", "Exponential", "Sum of the row", "Weight")
    ]
    assert found["Sum of the products"] == pytest.approx(float(seen.q[0, 3, 5] @ seen.k[0, 1, 2]), abs=2e-3)
    assert found["Bias"] == pytest.approx(seen.scores(5, 2, 3).item(), abs=2e-3)
    assert found["Exponential"] / found["Sum of the row"] == found["Weight"] == shown(tab, 5, 2)
    listed = tab.locator(".view-neuron .keys [data-col]").evaluate_all(
        "(all) => all.map((each) => each.dataset.weight)"
    )
    np.testing.assert_allclose(np.array(listed, float), weights, atol=1e-4)
    sink = tab.locator(".view-neuron .sink .share").get_attribute("title")
    assert float(sink or "nan") == pytest.approx(1 - weights.sum().item(), abs=1e-4)

    # A masked pair has no weight.
    show(tab, tmp_path, look(record(mask=masks.causal())), "row=2&col=5")
    assert shown(tab, 2, 5) == 0
    assert tab.get_by_text("may not attend: the score becomes −∞").is_visible()
    assert tab.locator(".view-neuron .keys .masked").count() == 6

    # Each element tells its numbers.
    seen = record(dim=5)
    show(tab, tmp_path, look(seen), "row=4&col=2")
    q, k = seen.q[0, 0, 4].double(), seen.k[0, 0, 2].double()
    told = tab.locator(".view-neuron .told")
    canvas = tab.locator(".view-neuron .elements canvas").nth(2)
    canvas.hover(position={"x": canvas.evaluate("(canvas) => 0.5 * canvas.clientWidth"), "y": 20})
    tab.locator(".told", has_text="element 3 of 5").wait_for()
    tab.keyboard.press("Shift+ArrowRight")
    tab.locator(".told", has_text="element 4 of 5").wait_for()
    numbers = [float(x) for x in (told.get_attribute("title") or "").replace("=", "×").split("×")]
    np.testing.assert_allclose(numbers, [q[3], k[3], q[3] * k[3]], atol=2e-3)


def test_the_pair_is_chosen_by_keys_lists_and_clicks(tab: Page, tmp_path: Path) -> None:
    seen = record()
    show(tab, tmp_path, look(seen), "row=4&col=4")
    for key, row, col in [("ArrowDown", 4, 5), ("ArrowUp", 4, 4), ("ArrowRight", 5, 4), ("ArrowLeft", 4, 4)]:
        tab.keyboard.press(key)
        assert shown(tab, row, col) == pytest.approx(seen.weights()[0, 0, row, col].item(), abs=1e-4)
    tab.locator('.view-neuron .keys [data-col="7"]').click()
    shown(tab, 4, 7)
    tab.get_by_label("Query").select_option("1")
    shown(tab, 1, 7)
    assert tab.evaluate("[headwise.state.row, headwise.state.col]") == [1, 7]
    tab.keyboard.press(".")
    tab.locator(".pair", has_text="head 1").wait_for()
    assert shown(tab, 1, 7) == pytest.approx(seen.weights()[0, 1, 1, 7].item(), abs=1e-4)
    tab.evaluate("headwise.state.set({ view: 'head', row: null, col: null, pinRow: 3, pinCol: 6 })")
    tab.get_by_role("tab", name="Neuron").click()  # a cell that is pinned in the map is taken apart
    shown(tab, 3, 6)


# ---- as a worksheet


def test_on_the_server_all_numbers_are_exact(open_context: BrowserContext, tmp_path: Path) -> None:
    """LibreOffice computes the same workbooks, as Python writes them: tests/worksheet/test_of_weight.py."""
    seen = look(rich())
    tab = open_context.new_page()
    with serving(inputs_of(seen), title="A page") as url:
        tab.goto(f"{url}#view=neuron&head=1&row=8&col=4")
        weight = seen[0].weights(heads=1, rows=8)[0, 0, 0, 4].item()
        assert shown(tab, 8, 4) == pytest.approx(weight, abs=1e-6)
        assert tab.locator(".accuracy").inner_text() == "Exact q and k, from the server."
        q = tab.evaluate("Array.from(headwise.app.view.terms.q)")
        assert q == head_row(seen[0], 0, 1, 8).q.tolist()
        with tab.expect_download() as download:
            tab.get_by_role("button", name="Open as worksheet").click()
        assert download.value.suggested_filename.endswith(".xlsx")
        download.value.save_as(tmp_path / "exact.xlsx")
    tab.close()
    assert Workbook(tmp_path / "exact.xlsx")["Weight"].item() == pytest.approx(weight, abs=1e-6)


def test_the_python_writes_the_worksheet(tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(record(), record())
    show(tab, tmp_path, seen, "layer=1&head=1&row=3&col=6")
    shown(tab, 3, 6)
    monkeypatch.chdir(tmp_path)
    exec(tab.evaluate("headwise.app.view.python()"), {"seen": seen})
    weight = seen[1].weights(heads=1, rows=3, cols=6).item()
    assert Workbook(tmp_path / "attention.xlsx")["Weight"].item() == pytest.approx(weight, abs=1e-6)

    # Too long a row has no workbook.
    show(tab, tmp_path, look(record(1, length=2, keys=1025)), "row=1&col=0")
    tab.keyboard.press("w")
    tab.locator("footer .alert", has_text="A worksheet holds up to 1024 keys of 512 dimensions.").wait_for()
