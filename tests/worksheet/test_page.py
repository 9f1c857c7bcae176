"""The page: every number of it in a real browser, any text, any width, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headwise import masks, nn
from headwise.nn.positions import Rope
from headwise.worksheet import Worksheet, make

from .cases import CASES, x

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser
HOSTILE = ["</script>", "<img src=x onerror=a()>", '"><b>', "&lt;", "a\u2028b", "🙂"]
Open = Callable[[Worksheet], "Tab"]

NUMBERS = """name => {
    const captions = [...document.querySelectorAll("caption")];
    const caption = captions.find(each => each.querySelector("b").textContent === name);
    return [...caption.parentElement.querySelectorAll("tbody tr")].map(
        row => [...row.querySelectorAll("td[title]")].map(cell => cell.title.split(" = ").at(-1)));
}"""


@pytest.fixture
def show(chromium: Browser, tmp_path: Path) -> Iterator[Open]:
    """A tab with the page of a worksheet; at its end nothing was asked for and nothing went wrong."""
    context = chromium.new_context(offline=True, viewport={"width": 1200, "height": 900})
    tab, trouble = context.new_page(), []
    tab.on("request", lambda request: request.url.startswith("file:") or trouble.append(request.url))
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))

    def open_page(sheet: Worksheet) -> Tab:
        sheet.write(tmp_path / "steps.html")
        tab.goto((tmp_path / "steps.html").as_uri())
        return tab

    yield open_page
    context.close()
    assert trouble == []


@pytest.mark.parametrize("name", ["causal", "everything", "mla", "latents", "bert"])
def test_it_shows_every_number(show: Open, name: str) -> None:
    sheet = CASES[name]().make()
    tab = show(sheet)
    assert tab.locator("section").count() == len(sheet)
    for name, matrix in sheet.matrices.items():
        if matrix.is_number:
            assert tab.locator(f"p.number:has(b:text-is('{name}')) span").inner_text() == matrix.shown(0, 0)
            continue
        found = [[float(cell.replace("−∞", "-inf")) for cell in row] for row in tab.evaluate(NUMBERS, name)]
        np.testing.assert_allclose(found, matrix.values, rtol=1e-8, atol=1e-12, err_msg=name)


def test_everyone_can_read_it(show: Open) -> None:
    """axe looks at every cell, so the page is a small one; in the dark only the contrast can differ."""
    from axe_playwright_python.sync_playwright import Axe

    tab = show(make(nn.MultiHeadAttention(2, 1, positions=Rope(2)), x(2, 2), mask=masks.causal()))
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        tab.emulate_media(color_scheme=scheme)
        found = Axe().run(tab, options=rules).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_any_token_is_text_and_it_fits(show: Open) -> None:
    sheet = make(nn.MultiHeadAttention(4, 2), x(len(HOSTILE), 4), tokens=HOSTILE, title="<i>mine</i>")
    tab = show(sheet)
    assert tab.locator("table.input tbody th").all_inner_texts() == HOSTILE
    assert tab.title() == tab.locator("h1").inner_text() == "<i>mine</i>"
    assert tab.locator("img, script, i").count() == 0

    tab = show(CASES["mla"]().make())
    for width in (400, 1200):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") == width


def test_links_lead_to_the_steps_and_a_weight_is_darker_the_larger_it_is(show: Open) -> None:
    sheet = make(nn.MultiHeadAttention(4, 2), x(3, 4))
    tab = show(sheet)
    links = tab.locator("nav a")
    assert links.all_inner_texts() == [step.heading for step in sheet]
    links.nth(6).click()
    assert tab.url.endswith("#step-7")
    assert tab.locator("#step-7 h2").inner_text().endswith("Mask")

    module = nn.MultiHeadAttention(4, 1)
    tab = show(make(module, x(3, 4), mask=masks.causal()))
    grounds = tab.locator("table.weights tbody tr:first-of-type td[style]").evaluate_all(
        "cells => cells.map(cell => getComputedStyle(cell).backgroundColor)"
    )
    assert grounds[0] != grounds[1] == grounds[2]
    assert tab.locator("table.mask td.off").count() == 3
