"""Honest colours, in a real browser: nearly uniform heads, small weights, a threshold, and the scale of Flow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from headwise import masks
from headwise.records import Seen
from headwise.viewer import inputs_of, write_page

from .browser import kept_address, open_page, told
from .conftest import record
from .test_pairs import ANIMAL, IT, LENGTH, WORDS, even, looking, scored

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.browser

NEARLY_EVEN, CLEAR, CAUSAL, MIXED = range(4)  # layers


def seen() -> Seen:
    near = even()
    near[IT, ANIMAL], near[IT, 7] = 0.2, -0.2
    found = Seen(
        [scored(near), scored(looking(IT, ANIMAL)), scored(near, mask=masks.causal()), record(1, length=LENGTH)]
    )
    found.tokens = [WORDS]
    return found


@pytest.fixture(scope="module")
def tab(context: BrowserContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One page for all tests. Each sets what it needs."""
    path = tmp_path_factory.mktemp("colours") / "page.html"
    write_page(path, inputs_of(seen()), title="A page")
    tab = context.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_function("() => window.headwise?.app?.drawn !== undefined")
    yield tab
    tab.close()


def select(tab: Page, **fields: object) -> None:
    usual = {"view": "head", "head": 0, "scale": "linear", "threshold": 0, "pinRow": None, "row": None, "col": None}
    tab.evaluate("(fields) => headwise.app.go(fields)", {**usual, "theme": "light", **fields})
    if fields.get("view", "head") == "head":
        tab.evaluate("() => headwise.app.view.map.settled()")


def colour(tab: Page, row: int, col: int) -> list[int]:
    """Of a cell of the map, beside its number."""
    return tab.evaluate(
        """([row, col]) => {
            const { map } = headwise.app.view;
            const at = [map.cols.place(col + 0.15), map.rows.place(row + 0.15)].map((x) => x * devicePixelRatio);
            return [...map.context.getImageData(...at, 1, 1).data].slice(0, 3);
        }""",
        [row, col],
    )


def test_a_nearly_uniform_head_is_shown_relative_to_uniform(tab: Page) -> None:
    for layer, scale in ((NEARLY_EVEN, "linear"), (CAUSAL, "root")):
        select(tab, layer=layer, scale=scale)
        keys = LENGTH if layer == NEARLY_EVEN else IT + 1
        scores = torch.tensor([0.2] + ([-0.2] if layer == NEARLY_EVEN else []) + [0.0] * 9)[:keys]
        reach = float(scores.softmax(0)[0]) * keys - 1
        assert tab.evaluate("headwise.app.view.map.reach") == pytest.approx(reach, abs=1e-3)
        assert "relative to uniform" in tab.locator(".view-head .legend").inner_text()
        red, _, blue = colour(tab, IT, ANIMAL)
        assert red > blue + 60  # orange: more than an even share
        if layer == NEARLY_EVEN:
            red, _, blue = colour(tab, IT, 7)
            assert blue > red + 60
            # The number in a cell stays the weight.
            weight, reach, scale, _, signed = tab.evaluate("headwise.app.view.map.plates.colourOf(0.12, 5)")
            assert (weight, scale, signed) == (pytest.approx(0.2), "linear", True)
            assert reach > 0.1
        assert min(colour(tab, 0, 0)) > 240  # exactly an even share: the page's colour, also in a row of one key


def test_weights_below_the_threshold_are_not_drawn_and_small_ones_are_pale(tab: Page, tmp_path: Path) -> None:
    select(tab, layer=MIXED)
    weights = tab.evaluate(
        "headwise.source.inputs[0].stacks[0].tile(3, 0, [0, 10], [0, 10], 10, 10, 'max').then(Array.from)"
    )
    small = min(range(100), key=lambda at: abs(weights[at] - 0.08))
    large = max(range(100), key=lambda at: weights[at])
    before = [colour(tab, *divmod(at, LENGTH)) for at in (small, large)]
    slider = tab.get_by_role("slider", name="Hide weights below")
    slider.fill("50")
    tab.evaluate("() => headwise.app.view.map.settled()")
    assert tab.evaluate("headwise.state.threshold") == 0.25
    assert "threshold=0.25" in kept_address(tab)
    assert "weights below 0.25 are not drawn" in tab.locator(".view-head .legend").inner_text()
    after = [colour(tab, *divmod(at, LENGTH)) for at in (small, large)]
    assert after[0] != before[0]
    assert min(after[0]) > 225  # the ramp's beginning
    assert after[1] == before[1]
    select(tab, layer=MIXED)
    assert [colour(tab, *divmod(at, LENGTH)) for at in (small, large)] == before

    # The text hides them too.
    select(tab, view="text", layer=CLEAR, row=IT)
    told(tab, IT)
    assert background(tab, ANIMAL)
    assert background(tab, 3)
    tab.evaluate("headwise.state.set({ threshold: 0.25 })")
    tab.wait_for_function("() => !headwise.app.view.blocks[0].running.spans[3].style.backgroundColor")
    assert background(tab, ANIMAL)

    # The text stays pale where weights are small.
    words = [f"w{i}" for i in range(80)]
    found = Seen([record(1, length=80, size=0.01)])
    found.tokens = [words]
    other = tab.context.new_page()
    open_page(other, tmp_path, found, "view=text&row=3&scale=root")
    told(other, 3)
    red, green, blue = (int(part) for part in background(other, 5).strip("rgb()").split(","))
    assert green > 205, (red, green, blue)  # no strong colour for 1/80
    assert other.locator(".attention-caption .ticks span").last.inner_text() == "1"

    # A position is not named twice.
    open_page(other, tmp_path, record(1), "row=0&col=3")
    other.locator('#cell[data-cell="0,3"]').wait_for()
    assert other.locator("#cell .pair").inner_text() == "0 → 3"
    other.close()


def background(tab: Page, token: int) -> str:
    return tab.evaluate("(token) => headwise.app.view.blocks[0].running.spans[token].style.backgroundColor", token)


def test_flow_says_its_scale_and_marks_what_is_beyond_it(tab: Page) -> None:
    select(tab, view="flow", layer=0, pinRow=IT)
    legend = tab.locator(".view-flow .legend")
    legend.get_by_text("of each layer’s largest share, without the followed token").wait_for()
    tab.wait_for_function("() => headwise.app.view.flow?.part === 1 && headwise.app.view.flow.token === 5")
    found = tab.evaluate(
        """() => {
            const { flow: { found, token }, tops, marked } = headwise.app.view;
            return { own: found.map((each) => each[token]), tops, marked };
        }"""
    )
    beyond = [own > 1.001 * top for own, top in zip(found["own"], found["tops"], strict=True)]
    assert found["marked"] == beyond
    assert beyond[0] is False  # the first row is only itself, at the end of the scale
    assert any(beyond)
    legend.get_by_text("the followed token, beyond the scale").wait_for()
    tab.evaluate("headwise.state.set({ bands: 'alike' })")
    legend.get_by_text("of each layer’s largest share").wait_for(state="hidden")
    assert legend.locator(".ticks span").last.inner_text() not in ("", "100 %")
    tab.evaluate("headwise.state.set({ bands: 'each' })")
