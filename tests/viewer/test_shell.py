"""What stands around the views, and the view of all heads: keys, tabs, search, the address, bad files, axe."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import torch

import headwise
from headwise import masks
from headwise.records import AttentionRecord, Seen
from headwise.text import Patches
from headwise.viewer import inputs_of, write_page

from .browser import SVG, check_with_axe, kept_address, texts_in
from .conftest import HOSTILE, record
from .texts import PIECES, tokens_of
from .texts import record as text_record

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

WORDS = ["[CLS]", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
TITLES = {"model": "Model", "head": "Head", "lines": "Lines", "text": "Text", "neuron": "Neuron", "surface": "3-D"}
TITLES |= {"compare": "Compare", "flow": "Flow", "image": "Image"}
VIEWS = list(TITLES)
TABS = VIEWS[:-1]  # of a text: it has no image


def seen_of(*records: AttentionRecord, words: list[str] | None = WORDS) -> Seen:
    seen = Seen(records)
    if words:
        seen.tokens = [words]
    return seen


def write(folder: Path, seen: Any, title: str = "A page", made: str | None = None) -> Path:
    path = folder / "page.html"
    write_page(path, inputs_of(seen), title=title, made=made)
    return path


def show(tab: Page, folder: Path, seen: Any, address: str = "", **facts: Any) -> None:
    path = write(folder, seen, **facts)
    tab.goto("about:blank")
    tab.goto(path.as_uri() + (f"#{address}" if address else ""))
    tab.wait_for_function("() => window.headwise?.app")


def state(tab: Page, *fields: str) -> Any:
    found = [tab.evaluate("(field) => headwise.state[field]", field) for field in fields]
    return found[0] if len(found) == 1 else found


def wait(tab: Page, **fields: Any) -> None:
    for field, value in fields.items():
        tab.wait_for_function(
            "([field, value]) => JSON.stringify(headwise.state[field]) === JSON.stringify(value)", arg=[field, value]
        )


def cell(tab: Page, row: int, col: int) -> tuple[str, float]:
    """What the read-out says of a cell, once it says it: the digits, and the weight in full."""
    place = tab.locator(f'#cell[data-cell="{row},{col}"]')
    place.wait_for()
    return place.locator("b").inner_text(), float(place.get_attribute("data-weight") or "nan")


def watched() -> Seen:
    """Two layers of a model, which know their names."""
    layers = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    with headwise.watch(layers.eval()) as seen, torch.no_grad():
        layers(torch.randn(1, 9, 8))
    return seen


# ---- the address


def test_the_address_follows_what_is_looked_at_and_brings_it_back(tab: Page, tmp_path: Path) -> None:
    """js/address.test.mjs has every field, and more nonsense; here is also what this page does not have."""
    seen = {"one": seen_of(record(3), record(3)), "two": seen_of(record(4), record(4), record(4))}
    looked = {
        "view": "text", "input": 1, "layer": 2, "head": 3, "heads": [[0, 1], [1, 2]], "row": 4, "col": 5, "sink": True,
        "sight": [1.25, 7, 0, 4.5], "other": {"input": 0, "stack": 0, "layer": 1, "head": 2}, "strip": False,
    }  # fmt: skip
    show(tab, tmp_path, seen)
    tab.evaluate("(looked) => headwise.app.go(looked)", looked)
    show(tab, tmp_path, seen, kept_address(tab))
    assert {field: state(tab, field) for field in looked} == looked
    assert tab.get_by_text("The address names").count() == 0
    tab.evaluate("(first) => headwise.state.set(first)", {"view": "head", "layer": 0})
    tab.evaluate("location.hash = ''")
    wait(tab, input=0, heads=[], row=None, sink=False, strip=True, other=None)

    nonsense = (
        "view=<script>&layer=99&head=-1&row=1e9&input=7&heads=0.0,9.9,x&other=0.0.0.9&theme=toString&%00=%E0%A4%A"
    )
    tab.evaluate("(address) => headwise.app.follow(`#${address}`)", nonsense)
    found = {field: state(tab, field) for field in (*looked, "theme")}
    first = {"view": "head", "input": 0, "layer": 0, "head": 0, "heads": [[0, 0]], "row": None, "col": None}
    assert found == {**first, "sink": False, "sight": None, "other": None, "strip": True, "theme": "auto"}
    assert tab.get_by_role("tab", selected=True).inner_text() == "Head"
    assert tab.get_by_text("The address names what this page does not have: ").is_visible()


def test_a_page_in_a_page_has_no_address_of_its_own_and_does_not_scroll_that_one(tab: Page, tmp_path: Path) -> None:
    tab.set_content(write(tmp_path, seen_of(record())).read_text("utf-8"))
    tab.wait_for_function("() => window.headwise?.app")
    tab.keyboard.press("ArrowDown")
    wait(tab, row=0)
    assert cell(tab, 0, 0)[1] > 0
    tab.wait_for_timeout(300)  # longer than an address takes to follow
    assert tab.evaluate("location.href") == "about:blank"

    # A page within another one does not scroll that one.
    page = write(tmp_path, seen_of(record(), record()))
    outer = tmp_path / "outer.html"
    addresses = ["view=model&layer=1&head=1", "view=text&row=4&pinrow=4", "view=head&row=4&col=2"]
    frames = "".join(
        f'<div style="height: 3000px"></div><iframe src="{page.name}#{address}" width="900" height="600"></iframe>'
        for address in addresses
    )
    outer.write_text(frames, encoding="utf-8")
    tab.goto(outer.as_uri())
    for inner in tab.frames[1:]:
        inner.wait_for_function("() => window.headwise?.app")
    tab.wait_for_timeout(300)  # a frame out of sight draws no frames to wait for
    assert tab.evaluate("scrollY") == 0


# ---- keys


def test_keys_move_the_cell_and_turn_heads_and_its_weight_is_read_out(tab: Page, tmp_path: Path) -> None:
    seen = seen_of(record(mask=masks.causal()))
    show(tab, tmp_path, seen)
    tab.keyboard.press("ArrowDown")
    wait(tab, row=0, col=0)
    moves = [("ArrowDown", 1, 0), ("Shift+ArrowRight", 1, 8), ("Shift+ArrowDown", 8, 8), ("ArrowLeft", 8, 7)]
    for key, row, col in [*moves, ("ArrowUp", 7, 7)]:
        tab.keyboard.press(key)
        digits, weight = cell(tab, row, col)
        expected = seen[0].weights(row, col, 0).item()
        assert weight == pytest.approx(expected, abs=1e-4)
        if col > row:
            assert digits == "masked"
        else:
            assert float(digits) == pytest.approx(weight, rel=1e-3)
            assert len(digits.lstrip("0.")) >= 4
    assert re.sub(r"\s+", " ", tab.locator("#cell").inner_text()).endswith(". 7 → . 7 layer 0 · head 0")

    # Brackets turn layers and commas turn heads.
    records = [record(3), record(2), record(3)]
    show(tab, tmp_path, seen_of(*records), "row=3&col=4")
    turns = [("]", 1, 0), (".", 1, 1), (".", 1, 0), ("]", 2, 0), (",", 2, 2)]
    for key, layer, head in [*turns, ("]", 0, 2), ("]", 1, 0), ("[", 0, 0), ("[", 2, 0)]:
        tab.keyboard.press(key)
        wait(tab, layer=layer, head=head)
        assert cell(tab, 3, 4)[1] == pytest.approx(records[layer].weights(3, 4, head).item(), abs=1e-4)
        current = tab.locator(".strip [aria-current=true]")
        assert current.get_attribute("aria-label") == f"layer {layer}, head {head}"

    # A weight that is late never stands for another.
    show(tab, tmp_path, seen_of(*records), "row=1&col=2")
    cell(tab, 1, 2)
    tab.evaluate(LATE)
    tab.keyboard.press(".")
    assert tab.locator("#cell").get_attribute("data-cell") is None
    tab.evaluate("letGo()")
    assert cell(tab, 1, 2)[1] == pytest.approx(records[0].weights(1, 2, 1).item(), abs=1e-4)


LATE = """() => {
    const { stack } = headwise.app, tile = stack.tile.bind(stack);
    const free = new Promise((resolve) => (window.letGo = resolve));
    stack.tile = (...what) => free.then(() => tile(...what));
}"""


def test_the_other_keys(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, seen_of(record(), record()), "row=1&col=2")
    for number, view in enumerate(TABS, 1):
        tab.keyboard.press(str(number))
        wait(tab, view=view)
    tab.keyboard.press("2")
    for key, changed in {
        "x": {"heads": [[0, 0]]}, "s": {"scale": "root"}, "c": {"colours": "viridis"}, "h": {"sink": True},
        "b": {"strip": False}, "p": {"pinRow": 1, "pinCol": 2}, "t": {"theme": "dark"},
    }.items():  # fmt: skip
        tab.keyboard.press(key)
        wait(tab, **changed)
    for gone in ({"pinRow": None, "pinCol": None, "row": 1}, {"row": None, "col": None}):
        tab.keyboard.press("Escape")
        wait(tab, **gone)
    tab.keyboard.press("x")
    wait(tab, heads=[])

    # Keys of other keyboards and while something is typed.
    show(tab, tmp_path, seen_of(record(), record()))
    tab.keyboard.press("/")
    tab.keyboard.type("t]x.2h/?")
    assert tab.get_by_role("searchbox").input_value() == "t]x.2h/?"
    assert state(tab, "layer", "head", "heads", "view", "sink", "theme") == [0, 0, [], "head", False, "auto"]
    assert not tab.get_by_role("dialog").is_visible()
    press = "(key) => document.body.dispatchEvent(new KeyboardEvent('keydown', { ...key, bubbles: true }))"
    keys: list[tuple[dict[str, Any], int]] = [
        ({"key": "]", "ctrlKey": True, "altKey": True}, 1),  # AltGr, on a German keyboard
        ({"key": "]", "altKey": True}, 1),  # Option, on a Mac
        ({"key": "ъ", "code": "BracketRight"}, 1),  # a Russian layout
        ({"key": "]", "ctrlKey": True}, 0),
        ({"key": "]", "metaKey": True}, 0),
        ({"key": "]", "isComposing": True}, 0),
    ]
    for key, turned in keys:
        tab.evaluate("headwise.state.set({ layer: 0 })")
        tab.evaluate(press, key)
        assert state(tab, "layer") == turned, key

    # The table of keys lists those of the view too.
    show(tab, tmp_path, seen_of(record()), "view=model")
    tab.keyboard.press("?")
    dialog = tab.get_by_role("dialog", name="Keyboard")
    text = re.sub(r"\s+", " ", dialog.inner_text())
    assert "[ ] previous layer, next layer" in text
    assert "In Model ↑ ↓ ← → next head in this direction Enter open this head" in text
    assert "move the cell; with Shift" not in text  # the arrows do something else here
    tab.keyboard.press("]")  # nothing moves behind the table
    tab.keyboard.press("Escape")
    assert not dialog.is_visible()
    tab.get_by_role("button", name="Help").click()
    assert dialog.is_visible()
    assert state(tab, "layer") == 0


# ---- tabs, pickers and the strip


def test_tabs_as_the_pattern_for_tabs_has_them_and_the_strip(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, seen_of(record()), "view=model")
    tabs = tab.get_by_role("tab")
    assert tabs.all_inner_texts() == [TITLES[view] for view in TABS]
    tabs.nth(0).focus()
    for key, view in [("ArrowRight", "head"), ("End", "flow"), ("ArrowRight", "model"), ("ArrowLeft", "flow")]:
        tab.keyboard.press(key)
        wait(tab, view=view)
        chosen = tab.get_by_role("tab", selected=True)
        assert chosen.inner_text() == TITLES[view]
        assert tab.evaluate("headwise.app.root.activeElement.id") == f"tab-{view}"
        panel = tab.get_by_role("tabpanel")
        assert panel.get_attribute("aria-labelledby") == f"tab-{view}"
        assert panel.get_attribute("id") == chosen.get_attribute("aria-controls")
        panel.filter(has_text=re.compile(r"\S")).wait_for()  # a view, or a sentence why there is none

    # One head needs no strip.
    show(tab, tmp_path, record(1, length=1))
    assert tab.locator(".strip").is_hidden()
    assert "1 layer × 1 head · 1 position ·" in tab.locator(".facts").inner_text()
    tab.keyboard.press("ArrowRight")
    assert cell(tab, 0, 0) == ("1.000", pytest.approx(1))
    tab.keyboard.press("1")
    tab.wait_for_function("() => headwise.app.root.querySelectorAll('.view-model .tile[data-ready]').length === 1")

    # The strip goes to a head and chooses others.
    show(tab, tmp_path, seen_of(record(3), record(3)))
    tab.locator(".strip").get_by_role("button", name="layer 1, head 2").click()
    wait(tab, layer=1, head=2)
    for name in ("layer 0, head 1", "layer 1, head 0"):
        tab.locator(".strip").get_by_role("button", name=name).click(modifiers=["Shift"])
    wait(tab, layer=1, head=2, heads=[[0, 1], [1, 0]])
    chosen = tab.locator(".strip .tile.chosen").evaluate_all("(tiles) => tiles.map((tile) => tile.ariaLabel)")
    assert chosen == ["layer 0, head 1, also chosen", "layer 1, head 0, also chosen"]
    tab.locator(".strip").get_by_role("button", name="layer 0, head 1").click(modifiers=["Shift"])
    wait(tab, heads=[[1, 0]])
    tab.get_by_role("combobox", name="Head").select_option("1")
    wait(tab, layer=1, head=1)
    tab.get_by_role("button", name="Next layer").click()
    wait(tab, layer=0, head=1)
    tab.get_by_role("button", name="Previous head").click()
    wait(tab, layer=0, head=0)
    assert tab.locator(".strip .tile:not([tabindex='-1'])").count() == 1  # Tab passes by all others
    tab.keyboard.press("b")
    tab.locator(".strip .tile").first.wait_for(state="hidden")

    # Key value heads are shown as groups.
    show(tab, tmp_path, seen_of(record(6, 2), record(4)), "view=model")
    rows = tab.locator(".view-model .layer")
    groups = rows.nth(0).locator(".group")
    assert [group.locator(".tile").count() for group in groups.all()] == [3, 3]
    assert groups.locator(".kv").all_inner_texts() == ["kv 0", "kv 1"]
    assert rows.nth(1).locator(".group").count() == 0
    assert "2 layers × 4–6 heads (2–4 key/value)" in tab.locator(".facts").inner_text()
    tab.keyboard.press("2")
    assert [group.locator(".tile").count() for group in tab.locator(".strip .group.shared").all()] == [3, 3]
    tab.evaluate("headwise.app.go({ layer: 0, head: 4 })")
    assert "key/value head 1" in tab.locator(".strip .path").inner_text()


def test_another_input_keeps_the_cell_or_lets_go_what_it_has_not(tab: Page, tmp_path: Path) -> None:
    seen = {
        "long": seen_of(record(4), record(4), record(4)),
        "short": seen_of(record(2, length=5), words=["a", "b", "c", "d", "e"]),
    }
    show(tab, tmp_path, seen, "layer=2&head=3&row=8&col=1&pinrow=2&heads=2.2")
    tab.get_by_role("combobox", name="Input").select_option("short")
    wait(tab, input=1, layer=0, head=0, row=None, col=None, pinRow=None, heads=[])
    assert "1 layer × 2 heads · 5 tokens" in tab.locator(".facts").inner_text()
    assert tab.locator(".strip .tile").count() == 2

    # The cell stays where two inputs have the same tokens.
    before, after = seen_of(record()), seen_of(record())
    show(tab, tmp_path, {"before": before, "after": after}, "row=3&col=4")
    assert cell(tab, 3, 4)[1] == pytest.approx(before[0].weights(3, 4, 0).item(), abs=1e-4)
    tab.get_by_role("combobox", name="Input").select_option("after")
    assert cell(tab, 3, 4)[1] == pytest.approx(after[0].weights(3, 4, 0).item(), abs=1e-4)
    assert state(tab, "row", "col") == [3, 4]


# ---- the search


def test_a_token_is_searched(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, seen_of(record()), "row=8&col=4")
    tab.keyboard.press("/")
    tab.keyboard.type("AT")  # in cat, sat and mat
    count = tab.locator(".search .count")
    assert count.inner_text() == "3"
    assert tab.evaluate("[...headwise.app.found.rows]") == [2, 3, 6]
    forwards = [("Enter", 2, 1), ("Enter", 3, 2), ("Enter", 6, 3), ("Enter", 2, 1)]
    for key, row, place in [*forwards, ("Shift+Enter", 6, 3), ("Shift+Enter", 3, 2)]:
        tab.keyboard.press(key)
        wait(tab, row=row, col=4)
        assert count.inner_text() == f"{place} of 3"
    tab.get_by_role("searchbox").fill("#6")
    tab.keyboard.press("Shift+Enter")
    wait(tab, row=6)
    tab.get_by_role("searchbox").fill("dog")
    assert count.inner_text() == "none"
    tab.keyboard.press("Enter")
    assert state(tab, "row") == 6
    tab.keyboard.press("Escape")
    assert tab.get_by_role("searchbox").input_value() == ""
    assert tab.evaluate("headwise.app.found") is None

    # The search goes to columns that are another text.
    seen = Seen([record(2, length=3), record(length=3, keys=5)])
    seen.tokens = {"target": [["the", "cat", "sat"]], "source": [["die", "Katze", "the", "saß", "."]]}
    show(tab, tmp_path, seen, "stack=1")
    tab.keyboard.press("/")
    tab.keyboard.type("the")
    assert tab.locator(".search .count").inner_text() == "2"
    tab.keyboard.press("Enter")
    wait(tab, row=0, col=0)
    tab.keyboard.press("Enter")
    wait(tab, row=0, col=2)
    cell(tab, 0, 2)
    assert "the 0 → the 2" in re.sub(r"\s+", " ", tab.locator("#cell").inner_text())


# ---- all heads


def test_small_maps_are_filled_where_they_are_in_sight(tab: Page, tmp_path: Path) -> None:
    records = [record(4) for _ in range(3)]
    show(tab, tmp_path, seen_of(*records))
    tab.wait_for_function("() => headwise.app.root.querySelectorAll('.strip .tile[data-ready]').length === 12")
    tab.keyboard.press("1")
    tab.wait_for_function("() => headwise.app.root.querySelectorAll('.view-model .tile[data-ready]').length === 12")
    cells = tab.evaluate("async () => [...(await headwise.app.thumbs.weights(headwise.app.stack, 2, 3)).weights]")
    torch.testing.assert_close(torch.tensor(cells).view(9, 9), records[2].weights(heads=3)[0, 0], rtol=0, atol=1e-4)
    colours = tab.locator(".view-model .tile canvas").first.evaluate(
        "(canvas) => new Set(canvas.getContext('2d').getImageData(0, 0, 9, 9).data).size"
    )
    assert colours > 10

    # Heads that are nearly uniform have other colours, which are explained where there are any.
    maps = tab.locator(".view-model .maps")
    assert maps.inner_text() == "maps: from 0 to the head’s largest weight"
    show(tab, tmp_path, seen_of(record(2), record(size=1e-3)), "view=model")
    tab.wait_for_function("() => headwise.app.root.querySelectorAll('.view-model .tile.even').length === 2")
    assert maps.inner_text().splitlines() == [
        "maps: from 0 to the head’s largest weight",
        "nearly uniform heads: below and above an even share",
    ]

    # A statistic that has one value in every head has no scale.
    show(tab, tmp_path, seen_of(record(size=1e-3)), "view=model&stat=entropy")
    assert tab.locator(".model-controls .scale").inner_text().split() == ["2.20", "nats", "in", "every", "head"]
    assert not tab.locator(".model-controls .scale i").is_visible()

    # Small maps of long inputs are pooled and wait until they are in sight.
    seen = seen_of(*(record(4, length=60) for _ in range(30)), words=None)
    show(tab, tmp_path, seen, "view=model")
    tab.wait_for_function("() => headwise.app.root.querySelectorAll('.tile[data-ready]').length >= 4")
    tab.wait_for_function("() => !headwise.app.thumbs.waiting.size && !headwise.app.thumbs.running")
    assert tab.locator(".tile[data-ready]").count() < 80
    last = tab.locator(".tile").last
    assert last.get_attribute("data-ready") is None
    last.scroll_into_view_if_needed()
    tab.locator(".tile[data-ready]").last.wait_for()
    tab.wait_for_function("() => [...headwise.app.root.querySelectorAll('.tile')].at(-1).dataset.ready === ''")
    size = last.locator("canvas").evaluate("(canvas) => [canvas.width, canvas.height]")
    assert size == [48, 48]

    # Small maps follow the colours and hide the sink.
    allowed = torch.ones(9, 9, dtype=torch.bool)
    allowed[:, 0] = False  # a padded key: the sink is the next one
    show(tab, tmp_path, seen_of(record(2, mask=masks.from_tensor(allowed))), "view=model")
    tab.locator(".view-model .tile[data-ready]").nth(1).wait_for()
    pixels = """(tile) => {
        const copy = new OffscreenCanvas(9, 9).getContext("2d", { willReadFrequently: true });
        copy.drawImage(tile.querySelector("canvas"), 0, 0);
        return [...copy.getImageData(0, 0, 9, 9).data];
    }"""
    first = tab.locator(".view-model .tile").first

    def clear() -> list[int]:
        """The columns in which nothing is drawn."""
        alpha = torch.tensor(first.evaluate(pixels)).view(9, 9, 4)[..., 3]
        return [col for col in range(9) if not alpha[:, col].any()]

    assert clear() == [0]
    before = first.evaluate(pixels)
    tab.keyboard.press("h")
    assert clear() == [0, 1]
    tab.keyboard.press("h")
    assert first.evaluate(pixels) == before
    for key in ("c", "s", "t"):
        tab.keyboard.press(key)
        after = first.evaluate(pixels)
        assert after != before
        before = after


def test_heads_are_sorted_by_a_statistic_also_one_that_comes_later(tab: Page, tmp_path: Path) -> None:
    records = [record(3, mask=masks.causal()) for _ in range(2)]
    show(tab, tmp_path, seen_of(*records), "view=model")
    entropy = {
        (layer, head): each.entropy()[0, head].mean().item() for layer, each in enumerate(records) for head in range(3)
    }
    shown = tab.locator(".view-model .tile").evaluate_all(
        """(tiles) => tiles.map(
            (tile) => [tile.dataset.layer, tile.dataset.head, tile.querySelector("b").textContent].map(Number)
        )"""
    )
    assert [(layer, head) for layer, head, _ in shown] == sorted(entropy)
    for layer, head, value in shown:
        assert value == pytest.approx(entropy[layer, head], rel=0.01, abs=0.01)
    for button, reverse in [("highest first", True), ("lowest first", False)]:
        tab.get_by_role("button", name=button).click()
        order = tab.locator(".view-model .tile").evaluate_all(
            "(tiles) => tiles.map((tile) => [tile.dataset.layer, tile.dataset.head].map(Number))"
        )
        assert [tuple(place) for place in order] == sorted(entropy, key=entropy.__getitem__, reverse=reverse)
        names = tab.locator(".view-model .under .name").all_inner_texts()
        assert names == [f"L{layer}·H{head}" for layer, head in order]
    tab.get_by_role("combobox", name="Statistic").select_option("distance")
    assert "How far" in tab.locator(".view-model .about").inner_text()

    # Arrows go from head to head and enter opens one.
    show(tab, tmp_path, seen_of(record(4), record(2), record(4)), "view=model")
    steps = [("Right", 0, 1), ("Right", 0, 2), ("Down", 1, 1), ("Right", 1, 1), ("Down", 2, 1), ("Left", 2, 0)]
    for key, layer, head in steps:
        tab.keyboard.press(f"Arrow{key}")
        wait(tab, layer=layer, head=head)
        assert tab.evaluate("headwise.app.root.activeElement.ariaLabel").startswith(f"layer {layer}, head {head}")
    tab.keyboard.press("Enter")
    wait(tab, view="head", layer=2, head=0)

    # Statistics that come later are filled in.
    show(tab, tmp_path, seen_of(record(2), record(2)))
    tab.evaluate(
        """() => {
            // A source such as a server's, which works out the statistics of a layer when it is asked.
            const host = document.createElement("div");
            document.body.append(host);
            window.answers = [];
            const stats = (layer) => new Promise((resolve) => (answers[layer] = resolve));
            const layersOf = ({ layers }) => layers.map((layer) => ({ ...layer, stats: null }));
            const stackOf = (stack) => ({ ...stack, stats, layers: layersOf(stack) });
            const inputs = headwise.source.inputs.map((input) => ({ ...input, stacks: input.stacks.map(stackOf) }));
            window.later = new headwise.app.constructor(host, { ...headwise.source, inputs });
            later.state.set({ view: "model", sort: "down" });
        }"""
    )
    read = """() => [...later.root.querySelectorAll('.view-model .tile')].map(
        (tile) => [tile.querySelector('.name').textContent, tile.querySelector('b').textContent].join(' ')
    )"""
    about = "() => later.root.querySelector('.view-model .about').textContent"
    assert tab.evaluate(read) == ["L0·H0 –", "L0·H1 –", "L1·H0 –", "L1·H1 –"]
    tab.evaluate("answers[1]({ entropy: [0.25, 12.34], estimated: 5 })")
    tab.wait_for_function(f"() => ({about})().includes('(1 of 2 layers so far.)')")
    assert tab.evaluate(read) == ["L1·H1 12.3", "L1·H0 0.25", "L0·H0 –", "L0·H1 –"]
    tab.evaluate("answers[0]({ entropy: [1.5, null], estimated: 5 })")
    tab.wait_for_function(f"() => ({about})().endsWith('Estimated from 5 of 9 rows.')")
    assert tab.evaluate(read) == ["L1·H1 12.3", "L0·H0 1.50", "L1·H0 0.25", "L0·H1 –"]
    tab.evaluate("later.state.set({ sort: 'up' })")
    assert tab.evaluate(read) == ["L1·H0 0.25", "L0·H0 1.50", "L1·H1 12.3", "L0·H1 –"]


# ---- ways out


def test_a_picture_and_the_python_of_a_view(tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = watched()
    seen.save("run.hw")
    address, made = "view=model&scale=log&colours=viridis", 'headwise.load("run.hw")'
    show(tab, tmp_path, seen, address, title="Cats / <mats>", made=made)
    for name, head in [("PNG", b"\x89PNG"), ("SVG", b"<svg")]:
        with tab.expect_download() as waiting:
            tab.get_by_role("button", name=f"Save {name}").click()
        assert waiting.value.suggested_filename == f"Cats-mats-model.{name.lower()}"
        assert head in Path(waiting.value.path()).read_bytes()[:200]
    tab.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    tab.get_by_role("button", name="Copy Python").click()
    tab.get_by_text("Copied").wait_for()
    code = tab.evaluate("window.copied")
    assert code.startswith('import headwise.plot\n\nseen = headwise.load("run.hw")\nfigure = headwise.plot.heads(seen')
    exec(code, {})
    assert (tmp_path / "heads.pdf").read_bytes().startswith(b"%PDF")
    tab.evaluate("() => { navigator.clipboard.writeText = async () => { throw new DOMException('no'); }; }")
    tab.get_by_role("button", name="Copy Python").click()
    field = tab.get_by_role("textbox", name="Python")
    assert field.input_value() == code
    assert field.evaluate("(field) => field.selectionEnd - field.selectionStart") == len(code)


def test_a_saved_picture_has_its_whole_title_and_a_name_that_begins_with_it(tab: Page, tmp_path: Path) -> None:
    title = "第一次训练之后 " + "a_file_name_without_spaces_" * 6 + "end.hw"
    show(tab, tmp_path, {title: watched(), "other": watched()}, title=title)
    for view in ("head", "compare", "flow", "surface"):
        tab.evaluate("(view) => headwise.state.set({ view })", view)
        tab.wait_for_function("() => headwise.app.view.picture()")
        with tab.expect_download() as waiting:
            tab.get_by_role("button", name="Save SVG").click()
        svg = ElementTree.parse(waiting.value.path()).getroot()
        assert title.replace(" ", "") in "".join(texts_in(svg)).replace(" ", ""), view
        wide = max(float(text.get("x") or 0) + len("".join(text.itertext())) for text in svg.iter(f"{SVG}text"))
        assert wide < float(svg.get("width") or 0), view
    assert waiting.value.suggested_filename.startswith("第一次训练之后-a-file")
    assert waiting.value.suggested_filename.endswith("end-hw-surface-layer-0-head-0.svg")


# ---- what can be wrong


def test_an_incomplete_or_damaged_file_says_so(tab: Page, tmp_path: Path) -> None:
    path = write(tmp_path, seen_of(record(mask=masks.causal()), record(mask=masks.causal())))
    page = path.read_text("utf-8")

    def opened(part: str) -> None:
        path.write_text(part, "utf-8")
        tab.goto("about:blank")
        tab.goto(f"{path.as_uri()}#view=model")

    facts = re.compile(r'(<script type="application/json" id="facts">).*?(</script>)', re.DOTALL)
    for part in (
        page[: page.index('<script type="module">') + 5000],
        facts.sub(lambda found: found[1] + '{"title": "half' + found[2], page, count=1),
        facts.sub("", page, count=1),
    ):
        opened(part)
        said = tab.locator("#page > p")
        said.wait_for()  # in sight
        assert re.search(r"incomplete|is damaged", said.inner_text())
    for name, change in (("group", "*!"), ("plane", "")):  # no letters of a number; js/weights.test.mjs cuts every kind
        block = re.compile(rf'(<script type="text/plain" id="[^"]*{name}[^"]*">[^<]{{40}})[^<]*')
        opened(block.sub(rf"\1{change}", page))
        alert = tab.get_by_role("alert")
        alert.get_by_text("damaged").wait_for()
        assert "Write it again" in alert.inner_text()
        assert tab.get_by_role("tab").count() == len(TABS)  # all the rest is there
        alert.get_by_role("button", name="Dismiss").click()
        assert alert.inner_text() == ""


BESIDE = """() => {
    // A second one in the same document, as in a notebook; its questions are answered by hand.
    const host = document.createElement("div");
    host.style.height = "600px";
    document.body.append(host);
    window.asked = [];
    const tile = (...question) => new Promise((resolve, reject) => asked.push({ question, resolve, reject }));
    const stackOf = (stack) => ({ ...stack, tile });
    const inputs = headwise.source.inputs.map((input) => ({ ...input, stacks: input.stacks.map(stackOf) }));
    const close = () => (window.ended = true);
    window.beside = new headwise.app.constructor(host, { ...headwise.source, inputs, close });
}"""


def test_two_pages_in_one_document_and_what_takes_long_or_fails(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, seen_of(record()))
    tab.evaluate(BESIDE)
    tab.wait_for_function("() => !beside.progress.hidden")  # the view asked at once, and nobody answers
    tab.wait_for_function(
        """() => {
            for (const { question, resolve } of asked.splice(0)) resolve(new Float32Array(question[4] * question[5]));
            return beside.progress.hidden;
        }"""
    )
    assert tab.evaluate("headwise.app.progress.hidden")
    tab.evaluate("() => { beside.stack.tile(0, 0, [0, 1], [0, 1], 1, 1, 'max', { idle: true }); }")
    tab.wait_for_timeout(400)
    assert tab.evaluate("beside.progress.hidden")  # idle questions may take their time
    tab.evaluate("asked.pop().reject(new DOMException('given up', 'AbortError'))")
    assert tab.evaluate("beside.footer.alert.textContent") == ""
    tab.evaluate(
        """() => {
            beside.stack.tile(0, 0, [0, 1], [0, 1], 1, 1, "max", {});
            asked.pop().reject(new Error("The server does not answer."));
        }"""
    )
    tab.wait_for_function("() => beside.footer.alert.textContent === 'The server does not answer.'")
    assert tab.evaluate("headwise.app.footer.alert.textContent") == ""

    # Two in one document do not disturb each other.
    show(tab, tmp_path, seen_of(record(), record()))
    tab.evaluate(BESIDE)
    tab.evaluate("location.hash = '#layer=1'")
    wait(tab, layer=1)
    assert tab.evaluate("beside.state.layer") == 0  # the address is the page's
    tab.keyboard.press("[")
    wait(tab, layer=0)
    assert tab.evaluate("beside.state.layer") == 0  # and so are keys, but for those within
    tab.evaluate("beside.panel.focus()")
    tab.keyboard.press("]")
    assert tab.evaluate("[beside.state.layer, headwise.state.layer]") == [1, 0]
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_function("() => beside.host.dataset.theme === 'dark' && headwise.app.host.dataset.theme === 'dark'")
    tab.evaluate("beside.close()")
    assert tab.evaluate("window.ended")
    tab.emulate_media(color_scheme="light")
    tab.wait_for_function("() => headwise.app.host.dataset.theme === 'light'")
    assert tab.evaluate("beside.host.dataset.theme") == "dark"  # it listens no more


# ---- room and accessibility


def every_kind() -> dict[str, Seen]:
    """A text whose first word is very long, hostile ones, two texts that look at each other, and an image."""
    long, image = (
        seen_of(record(12, 4, length=16), text_record(16, heads=12), words=None),
        seen_of(record(6), words=None),
    )
    long.tokens, image.tokens = tokens_of(["a" * 80, *PIECES[1:]]), Patches(2, 4)
    cross = Seen([text_record(16, 9, heads=2, kind="cross")])
    cross.tokens = {"source": [HOSTILE], "target": tokens_of(PIECES)}
    return {
        "a rather long name of an input, which says what it is": long,
        "</option><script>alert(3)</script>": seen_of(record(mask=masks.causal()), record(), words=HOSTILE),
        "two texts": cross,
        "an image": image,
    }


def views_of(tab: Page, seen: dict[str, Seen]) -> Iterator[str]:
    """Each view of each input, with the mouse on a cell, once it has drawn."""
    for number, view in itertools.product(range(len(seen)), VIEWS):
        chosen = {"input": number, "view": view, "compare": "difference" if number else "side", "row": 3, "col": 1}
        tab.evaluate("(chosen) => headwise.app.go(chosen)", {**chosen, "level": "words", "sink": number == 0})
        tab.wait_for_timeout(60)
        if view == "compare":
            tab.wait_for_function(
                "() => headwise.app.view?.maps.every(({ canvas }) => canvas.ariaLabel || !canvas.clientWidth) ?? true"
            )
        yield f"{view} of input {number}"


def test_every_view_takes_names_as_text_and_fits_a_narrow_window(tab: Page, tmp_path: Path) -> None:
    title = "<img src=x onerror=alert(1)>{{title}}</title><script>alert(2)</script>" + "Averylongtitlewithoutspaces" * 3
    tab.on("dialog", lambda dialog: pytest.fail(f"a script of the data ran: {dialog.message}"))
    tab.set_viewport_size({"width": 400, "height": 800})
    seen = every_kind()
    show(tab, tmp_path, seen, title=title)
    assert tab.get_by_role("heading", level=1).inner_text() == tab.title() == title
    for where in views_of(tab, seen):
        assert tab.locator("img[src=x], script:not([type])").count() == 0
        for box in (
            "document.documentElement",
            "headwise.app.frame",
            "headwise.app.panel",
            "headwise.app.panel.lastChild",
        ):
            assert tab.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0, (where, box)
    tab.evaluate("headwise.app.go({ input: 1, view: 'text', level: 'tokens', row: 0, col: 1 })")
    cell(tab, 0, 1)
    assert tab.locator("#cell bdi").all_text_contents() == HOSTILE[:2]
    assert tab.locator(".running .token").all_text_contents() == HOSTILE

    # The chosen tab is in sight, and the Model view begins at its top.
    show(tab, tmp_path, seen_of(*(record() for _ in range(24))), "view=model&layer=23&head=3")
    tab.wait_for_timeout(100)
    assert tab.evaluate("scrollY") == 0
    tab.evaluate("headwise.state.set({ view: 'flow' })")
    box = tab.get_by_role("tab", selected=True).bounding_box()
    assert 0 <= box["x"] < box["x"] + box["width"] <= 400


def test_axe_finds_nothing_serious_in_any_view(axe_tab: Page, tmp_path: Path) -> None:
    seen = every_kind()
    show(axe_tab, tmp_path, seen, "heads=1.1&pinrow=4")
    for where in views_of(axe_tab, seen):
        if where[-1] == "0" or where.startswith(("text", "image", "compare")):
            check_with_axe(axe_tab)
    axe_tab.set_viewport_size({"width": 400, "height": 800})
    check_with_axe(axe_tab)
