"""The Compare view in a real browser: two heads over the tokens of both, cell by cell as the records have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import headwise
from headwise import analyses
from headwise.records import Seen

from .browser import kept_address, open_page, saved_svg, texts_in
from .conftest import look, placed, record
from .test_modules import PAIRS, spread, weights

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def show(tab: Page, folder: Path, seen: Any, **state: Any) -> None:
    """Open the Compare view, and wait until its maps are exact."""
    open_page(tab, folder, seen, "&".join(f"{name}={value}" for name, value in {"view": "compare", **state}.items()))
    settle(tab)


def settle(tab: Page) -> None:
    tab.evaluate("async () => { for (const map of headwise.app.view.maps) await map.settled(); }")


def go(tab: Page, **state: Any) -> None:
    tab.evaluate("(state) => headwise.app.go(state)", state)
    settle(tab)


def whole(tab: Page, of: str) -> np.ndarray:
    """Every cell of one of the maps."""
    numbers = tab.evaluate(
        """async (of) => {
            const { rows, cols, tiles } = headwise.app.view;
            const cells = await tiles[of]([0, rows.length], [0, cols.length], rows.length, cols.length, "max", {});
            return Array.from({ length: rows.length }, (_, i) =>
                Array.from(cells.subarray(i * cols.length, (i + 1) * cols.length), String));
        }""",
        of,
    )
    return np.array(numbers, float)


def axis(tab: Page, of: str = "rows") -> tuple[list[int], list[int]]:
    """The tokens of the left and of the right at each entry, -1 = none."""
    return tuple(tab.evaluate(f"[[...headwise.app.view.{of}.left], [...headwise.app.view.{of}.right]]"))


# ---- weights and differences; test_modules.py has every cell of many kinds of records


def test_the_divergence_of_every_head_is_that_of_python(tab: Page, tmp_path: Path) -> None:
    one, other = PAIRS["two prompts"]()
    show(tab, tmp_path, [one, other], head=1)
    go(tab, compare="difference")
    tab.wait_for_function("() => headwise.app.view.where.found?.flat().every((each) => each)")
    found = tab.evaluate("() => headwise.app.view.where.found.map((heads) => heads.map(({ nats }) => nats))")
    expected = analyses.compare(one, other)[0].divergence
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
    most = int(expected.argmax())
    tab.locator(".view-compare .where", has_text=f"Most: layer 0 · head {most}").wait_for()
    tab.locator(".view-compare .grid button").nth(most).click()
    assert tab.evaluate("headwise.state.head") == most
    tab.evaluate("headwise.app.view.sampled('apart', 105)")
    assert "coarse: one of every 105 rows; zoom in for every cell" in tab.locator(".view-compare").inner_text()


def test_two_heads_of_one_input_and_of_two_that_look_at_another_text(tab: Page, tmp_path: Path) -> None:
    seen = look(record(heads=3, kv_heads=3), record(heads=3, kv_heads=3))
    show(tab, tmp_path, seen, layer=1, head=2, compare="difference")
    np.testing.assert_allclose(whole(tab, "apart"), weights(seen[1], 0) - weights(seen[1], 2), rtol=0, atol=2e-4)
    tab.get_by_role("group", name="The right side").get_by_label("layer").select_option("0")
    settle(tab)
    np.testing.assert_allclose(whole(tab, "apart"), weights(seen[0], 0) - weights(seen[1], 2), rtol=0, atol=2e-4)
    assert tab.get_by_role("button", name="linked").is_disabled()
    assert not tab.locator(".view-compare .where").is_visible()

    # Cross attention is aligned on both sides.
    def crossed(source: list[str], target: list[str]) -> Seen:
        seen = Seen([placed(record(length=len(target), keys=len(source)), "cross", kind="cross")])
        seen.tokens = {"source": source, "target": target}
        return seen

    one = crossed(["un", "chat", "noir"], ["a", "black", "cat", "."])
    other = crossed(["un", "chien"], ["a", "dog", "."])
    show(tab, tmp_path, [one, other], compare="difference")
    rows, cols = axis(tab, "rows"), axis(tab, "cols")
    assert (len(rows[0]), len(cols[0])) == (5, 4)
    cells = [spread(weights(seen[0], 0), rows[i], cols[i]) for i, seen in enumerate((one, other))]
    np.testing.assert_allclose(whole(tab, "apart"), cells[1] - cells[0], rtol=0, atol=2e-4)

    # What has nothing to compare says so.
    open_page(tab, tmp_path, look(record(heads=1, kv_heads=1)), "view=compare")
    assert "only one head" in tab.get_by_role("tabpanel").inner_text()


# ---- what a person sees


def point(tab: Page, of: str, row: int, col: int) -> str:
    """Move the mouse onto a cell of a map; what is read there."""
    x, y = tab.evaluate("([of, row, col]) => headwise.app.view.map[of].centreOf(row, col)", [of, row, col])
    place = tab.locator(f"[data-side={of}] .heat-map").bounding_box()
    tab.mouse.move(place["x"] + x, place["y"] + y)
    reading = ".view-compare .reading"
    tab.wait_for_function(
        "([reading, cell]) => headwise.app.root.querySelector(reading).dataset.cell === cell",
        arg=[reading, f"{row},{col}"],
    )
    return " ".join(tab.locator(reading).inner_text().split())


def test_a_cell_reads_both_weights_and_their_difference(tab: Page, tmp_path: Path) -> None:
    one, other = PAIRS["causal"]()
    show(tab, tmp_path, [one, other])
    left, right = axis(tab)
    row, col = left.index(10), left.index(9)  # "tired" (or "wide") looks at "was"
    assert right[row] == 11
    first, second = weights(one[0], 0)[10, 9], weights(other[0], 0)[right[row], right[col]]
    for side in ("left", "right"):
        point(tab, side, 0, 0)
        said = point(tab, side, row, col)
        numbers = [float(number.replace("−", "-")) for number in re.findall(r"[+−]?\d+\.\d+(?:e-\d+)?", said)]
        assert numbers == pytest.approx([first, second, second - first], abs=2e-4)
        assert said.startswith("tired | wide → was")
        assert tab.evaluate("[headwise.state.row, headwise.state.col]") == [10, 9]
        assert tab.evaluate("headwise.app.view.maps.map((map) => [map.marks.row, map.marks.col])") == [[row, col]] * 2
    old = right.index(6)  # which the left one lacks
    assert left[old] == -1
    assert "not there left" in point(tab, "right", old, 0)
    assert tab.evaluate("[headwise.state.row, headwise.state.col]") == [None, 0]
    assert "masked left masked right – right − left" in point(tab, "left", 0, len(left) - 1)
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    tab.wait_for_function(
        "(cell) => headwise.app.root.querySelector('.view-compare .reading').dataset.cell === cell",
        arg=f"2,{len(left) - 1}",
    )


def test_colours_zoom_and_pins_are_common(tab: Page, tmp_path: Path) -> None:
    one, other = look(record(size=0.3)), look(record(size=3.0))
    show(tab, tmp_path, [one, other])
    top = max(np.nanmax(weights(seen[0], 0)) for seen in (one, other))
    assert tab.evaluate("headwise.app.view.maps.map((map) => map.limit)") == pytest.approx([top, top], abs=1e-4)
    ticks = tab.locator(".view-compare .ticks span").all_inner_texts()
    assert float(ticks[-1]) == pytest.approx(top, rel=0.05)
    go(tab, compare="difference")
    by = np.abs(weights(other[0], 0) - weights(one[0], 0)).max()
    ticks = [float(tick.replace("−", "-")) for tick in tab.locator(".view-compare .ticks span").all_inner_texts()]
    assert [ticks[0], ticks[2], ticks[-1]] == pytest.approx([-by, 0, by], rel=0.05)

    # Zoom and pins are common.
    one, other = PAIRS["two prompts"]()
    show(tab, tmp_path, [one, other])
    point(tab, "right", 3, 4)
    for _ in range(4):
        tab.mouse.wheel(0, -200)
    settle(tab)
    sights = tab.evaluate("headwise.app.view.maps.map((map) => [...map.rows.sight, ...map.cols.sight])")
    assert sights[0] == pytest.approx(sights[1], abs=0.1)  # their labels leave them different room
    assert sights[0][1] - sights[0][0] < 10
    tab.mouse.down()
    tab.mouse.up()
    pins = tab.evaluate("headwise.app.view.maps.map((map) => [map.marks.pinRow, map.marks.pinCol])")
    assert pins[0] == pins[1] != [None, None]
    left, _ = axis(tab)
    assert tab.evaluate("[headwise.state.pinRow, headwise.state.pinCol]") == [left[pins[0][0]], left[pins[0][1]]]
    tab.keyboard.press("0")
    assert tab.evaluate("headwise.state.sight") is None
    assert tab.evaluate("headwise.app.view.maps.every((map) => map.rows.whole && map.cols.whole)")
    # In the state the part in sight is told in tokens of the left; js/align.test.mjs has the numbers.
    told = "([edges]) => { headwise.app.view.look(edges, 'left'); return headwise.state.sight; }"
    assert tab.evaluate(told, [[2.25, 11.5, 0, 9.5]]) == [2.25, 8.5, 0, 8]


def test_linked_sides_follow_one_another_and_a_choice_of_their_own_ends_that(tab: Page, tmp_path: Path) -> None:
    one, other = (look(record(heads=3, kv_heads=3), record(heads=3, kv_heads=3)) for _ in range(2))
    show(tab, tmp_path, {"before": one, "after": other})

    def caption(side: str) -> str:
        return " ".join(tab.locator(f"[data-side={side}] figcaption").inner_text().split())

    for key, name in [(".", "layer 0 · head 1"), ("]", "layer 1 · head 1")]:
        tab.keyboard.press(key)
        assert [caption("left"), caption("right")] == [f"left before · {name}", f"right after · {name}"]
    tab.get_by_role("group", name="The right side").get_by_label("head").select_option("0")
    tab.keyboard.press(".")
    assert [caption("left"), caption("right")] == ["left before · layer 1 · head 2", "right after · layer 1 · head 0"]
    tab.keyboard.press("l")
    assert caption("right") == "right after · layer 1 · head 2"
    tab.get_by_role("button", name="swap").click()
    assert [caption("left"), caption("right")] == ["left after · layer 1 · head 2", "right before · layer 1 · head 2"]
    kept_address(tab)
    tab.reload()
    settle(tab)
    assert [caption("left"), caption("right")] == ["left after · layer 1 · head 2", "right before · layer 1 · head 2"]


def test_its_python_and_its_pictures(tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = PAIRS["two prompts"]()
    show(tab, tmp_path, {"tired": one, "wide": other}, head=1, scale="root", sink="true")
    scope: dict[str, Any] = {"headwise": headwise, "seen": {"tired": one, "wide": other}}
    monkeypatch.chdir(tmp_path)
    exec(tab.evaluate("headwise.app.view.python()"), scope)
    assert (tmp_path / "left.pdf").stat().st_size > 1000
    assert (tmp_path / "right.pdf").stat().st_size > 1000
    texts = texts_in(saved_svg(tab))
    assert {"street", "road"} <= {*texts}
    assert all(title in " ".join(texts) for title in ("left tired · layer 0 · head 1", "right wide · layer 0 · head 1"))

    go(tab, compare="difference", sink=False)
    exec(tab.evaluate("headwise.app.view.python()"), scope)
    drawn = whole(tab, "apart")
    (left, right), same = axis(tab), tab.evaluate("[...headwise.app.view.rows.same]")
    both = [i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a >= 0 and b >= 0 and same[i]]
    np.testing.assert_allclose(drawn[both][:, both], scope["difference"], rtol=0, atol=2e-4)
    texts = texts_in(saved_svg(tab))
    assert {"◂ street", "▸ road"} <= {*texts}
    assert "right minus left wide · layer 0 · head 1 − tired · layer 0 · head 1" in " ".join(texts)
