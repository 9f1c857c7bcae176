"""What the tests in a browser share: the address, the numbers that a caption tells, and what axe finds."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import torch

from headwise.viewer import inputs_of, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

SVG = "{http://www.w3.org/2000/svg}"
WITHIN = 2e-4  # of the record: what the page rounds, and the sums of it


def told(tab: Page, group: int, of: str = "") -> list[tuple[int, float]]:
    """The places and weights in the caption, once it tells of that token or group in those heads."""
    tab.locator(f'.attention-caption [data-asked="{group}"]', has_text=of).wait_for()
    items = tab.locator(".attention-caption li[data-place]")
    listed = items.evaluate_all("(all) => all.map(({ dataset }) => [dataset.place, dataset.weight])")
    return [(int(place), float(weight)) for place, weight in listed]


def kept_address(tab: Page) -> str:
    """What the address keeps, once it has followed the state: it does so a moment later."""
    tab.wait_for_function("() => location.hash.slice(1) === headwise.state.write()")
    return str(tab.evaluate("location.hash.slice(1)"))


def weights_in(told: list[tuple[int, float]]) -> list[float]:
    return [weight for _, weight in told]


def check_largest(told: list[tuple[int, float]], expected: torch.Tensor) -> None:
    """That these are the largest of all weights, at their places; what is masked is not listed."""
    largest = expected.sort(descending=True).values
    assert len(told) == 5 or not largest[len(told) :].any()
    np.testing.assert_allclose(weights_in(told), largest[: len(told)], atol=WITHIN)
    np.testing.assert_allclose(weights_in(told), [expected[place] for place, _ in told], atol=WITHIN)


def check_with_axe(tab: Page) -> None:
    """That axe calls nothing serious, in the light theme; in the dark one only the contrast can differ.

    The tab is that of the fixture `axe_tab`.
    """
    for theme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        tab.evaluate("(theme) => headwise.state.set({ theme })", theme)
        check_as_it_is_with_axe(tab, rules)
    tab.evaluate("headwise.state.set({ theme: 'light' })")


def check_as_it_is_with_axe(tab: Page, rules: dict[str, Any] | None = None) -> None:
    if not tab.evaluate("Boolean(window.axe)"):
        tab.evaluate("(() => {" + (files("axe_playwright_python") / "axe.min.js").read_text("utf-8") + "})()")
    found = tab.evaluate(
        """async (rules) => {
            await new Promise(requestAnimationFrame);
            return (await axe.run({ resultTypes: ["violations"], ...rules })).violations;
        }""",
        rules,
    )
    serious = [
        (each["id"], [node["html"][:120] + " " + node.get("failureSummary", "") for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == [], json.dumps(serious, indent=1)


def open_page(tab: Page, folder: Path, seen: Any, address: str = "", **given: Any) -> None:
    """Open the page of what was seen; `address` is what it keeps of the state."""
    write_page(folder / "page.html", inputs_of(seen, **given), title="A page")
    tab.goto("about:blank")
    tab.goto(f"{(folder / 'page.html').as_uri()}#{address}")
    tab.wait_for_function("() => window.headwise?.app")


def saved_svg(tab: Page) -> Element:
    """The picture that is saved."""
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save SVG").click()
    return ElementTree.fromstring(Path(download.value.path()).read_text(encoding="utf-8"))


def texts_in(svg: Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]
