"""The map of a head, in a real browser without a network: what it shows is what the record says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.records import Seen
from headwise.text import Frames
from headwise.viewer.bundle import assemble

from .browser import SVG, kept_address, open_page, saved_svg, texts_in
from .conftest import CASES, HOSTILE, look, placed, record

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

TURNED = re.compile(r"matrix\(0 -1 1 0 ([\d.]+) [\d.]+\)")


def show(tab: Page, folder: Path, seen: Any, hash: str = "") -> None:
    open_page(tab, folder, seen, f"view=head&{hash}")
    settle(tab)


def settle(tab: Page) -> None:
    tab.evaluate("() => headwise.app.view.map.settled()")


def place(tab: Page, x: float, y: float) -> tuple[float, float]:
    """A place of the map, on the screen."""
    box = tab.locator(".view-head .heat-map canvas").bounding_box()
    return box["x"] + x, box["y"] + y


def cell(tab: Page, row: float, col: float) -> tuple[float, float]:
    """Where a cell's middle is on the screen."""
    return place(tab, *tab.evaluate("([row, col]) => headwise.app.view.map.centreOf(row, col)", [row, col]))


def label(tab: Page, row: int | None = None, col: int | None = None) -> tuple[float, float]:
    """Where the label of a row or a column is on the screen."""
    x, y = tab.evaluate("([row, col]) => headwise.app.view.map.centreOf(row ?? 0, col ?? 0)", [row, col])
    low = tab.evaluate("() => [headwise.app.view.map.cols.low, headwise.app.view.map.rows.low]")
    return place(tab, low[0] - 12 if col is None else x, low[1] - 12 if row is None else y)


def point(tab: Page, row: int, col: int) -> float:
    """Move the mouse onto a cell, and read the weight once the read-out has followed."""
    tab.mouse.move(*cell(tab, row, col))
    return read(tab, row, col)


def read(tab: Page, row: int, col: int) -> float:
    tab.wait_for_selector(f'#cell[data-cell="{row},{col}"]')
    return float(tab.locator("#cell").get_attribute("data-weight") or "nan")


def state(tab: Page, *fields: str) -> list[Any]:
    return tab.evaluate("(fields) => fields.map((field) => headwise.state[field])", list(fields))


def shown_weight(tab: Page, row: int, col: int) -> float | None:
    """The weight that the map has for a cell, None where it only knows a block's."""
    weight = tab.evaluate("([row, col]) => String(headwise.app.view.map.plates.weight(row, col))", [row, col])
    return None if weight == "undefined" else float(weight)


def colour(tab: Page, row: float, col: float) -> list[int]:
    """The colour of the map's pixel at a cell's middle, or at a place in the cell."""
    return tab.evaluate(
        """async ([row, col]) => {
            const { map } = headwise.app.view;
            await map.settled();
            const [x, y] = map.centreOf(row, col).map((at) => Math.round(at * devicePixelRatio));
            const one = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
            one.drawImage(map.canvas, -x, -y);
            return [...one.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [row, col],
    )


# ---- weights


def test_the_cell_pointed_at_is_read_out(tab: Page, tmp_path: Path) -> None:
    """test_modules.py has every cell of every kind of record."""
    records = {name: CASES[name]() for name in ("everything", "more queries than keys", "an empty row")}
    show(tab, tmp_path, {name: look(record) for name, record in records.items()})
    number = 0
    for name, seen in records.items():
        batch, heads, rows, cols = seen.shape
        head, row, col = heads - 1, rows - 1, cols // 2
        weight = seen.weights(row, col, head)[-1].item()
        number += batch
        tab.evaluate("([input, head]) => headwise.app.go({ input, head })", [number - 1, head])
        settle(tab)
        assert point(tab, row, col) == pytest.approx(weight, abs=1e-4), name
        assert np.nan_to_num(shown_weight(tab, row, col) or 0) == pytest.approx(weight, abs=1e-4), name

    masked = Seen([placed(record(length=50, mask=masks.causal()), "layers.0")])
    masked.tokens = Frames(50, 0.02)
    show(tab, tmp_path, masked)
    assert tab.locator(".view-head .masked").is_visible()
    assert point(tab, 2, 6) == 0
    assert tab.locator("#cell b").inner_text() == "masked"
    assert point(tab, 6, 2) > 0
    hatch = [colour(tab, 1, 5), colour(tab, 3, 7)]
    assert all(max(abs(a - b) for a, b in zip(*hatch, strict=True)) < 40 and min(each) > 190 for each in hatch)  # grey
    assert " · 50 frames of 20 ms (1.00 s) · " in (tab.locator("header .facts").text_content() or "")
    assert "0.12 s" in tab.locator("#cell").inner_text()  # positions of sound have their time


# ---- zoom


def test_a_long_text_can_be_read_down_to_its_cells(tab: Page, tmp_path: Path) -> None:
    seen = record(length=2100, dim=8, mask=masks.window(300, 0))
    show(tab, tmp_path, look(seen), "head=1")
    notes = tab.evaluate(
        """async () => {
            const { map, note } = headwise.app.view;
            const said = [];
            new MutationObserver(() => said.push(note.textContent)).observe(note, { childList: true });
            headwise.app.go({ head: 0 });
            await map.settled();
            return said;
        }"""
    )
    assert any(re.fullmatch(r"sampled: [\d,]+ of 2,100 rows · refining \d+ %", said) for said in notes)
    assert notes[-1].startswith("exact")
    assert shown_weight(tab, 700, 690) is None  # that of a block is known
    tab.mouse.move(*cell(tab, 700, 690))
    for _ in range(40):
        tab.mouse.wheel(0, -200)
    settle(tab)
    row, past_row, col, past_col = state(tab, "sight")[0]
    assert row < 700 < past_row < row + 40
    assert col < 690 < past_col < col + 40
    for i, j in [(700, 690), (int(row) + 1, int(col) + 1), (int(past_row) - 1, int(past_col) - 1)]:
        weight = seen.weights(i, j, 0).item()
        assert point(tab, i, j) == pytest.approx(weight, abs=1e-4)
        assert np.nan_to_num(shown_weight(tab, i, j) or 0) == pytest.approx(weight, abs=1e-4)

    # Rows are coloured against all of them when a part is in sight.
    show(tab, tmp_path, look(seen), "scale=row&sight=1000,1020,1500,1520")
    weights = seen.weights(heads=0)[0, 0]
    for row in (1003, 1010):
        top = tab.evaluate("(row) => headwise.app.view.map.topOf(row)", row)
        assert top == pytest.approx(weights[row].max().item(), abs=1e-4)


def test_strips_are_the_same_as_the_whole_and_a_hidden_sink_is_left_out(tab: Page, tmp_path: Path) -> None:
    seen = record(length=2100, dim=4, mask=masks.causal(), bias=sink(2100))
    show(tab, tmp_path, look(seen))
    plate = tab.evaluate(
        """() => {
            const { block, height, width, past, weights } = headwise.app.view.map.plates.whole;
            const some = [...weights].filter((_, i) => Math.floor(i / width) % 7 === 0);  // every seventh row
            return { block, height, width, past, weights: some.map((weight) => weight || 0) };
        }"""
    )
    assert plate["past"] == plate["height"]
    assert plate["block"] > 1
    assert plate["width"] < 2100
    edges = np.arange(plate["width"]) * 2100 // plate["width"]
    weights = seen.weights(heads=0)[0, 0].nan_to_num(0).numpy()
    rows = np.maximum.reduceat(weights, np.arange(0, 2100, plate["block"]), axis=0)
    expected = np.maximum.reduceat(rows, edges, axis=1)[::7]
    np.testing.assert_allclose(np.reshape(plate["weights"], expected.shape), expected, atol=1e-4)
    others = seen.weights(heads=0, cols=slice(1, None), rows=slice(1, None)).max().item()
    assert others < 0.8 * weights.max()
    tab.get_by_role("button", name="Hide the sink").click()
    settle(tab)
    assert tab.evaluate("() => headwise.app.view.map.top") == pytest.approx(others, abs=1e-4)

    # Hiding the sink changes the colours and no weight.
    seen = record(length=12, bias=sink(12))
    show(tab, tmp_path, look(seen))
    weights = seen.weights(heads=0)[0, 0]
    assert weights[:, 1:].max() < 0.8 * weights.max()
    before = colour(tab, 5, -0.3)
    tab.get_by_role("button", name="Hide the sink").click()
    settle(tab)
    assert tab.get_by_text("first token hidden · values unchanged, not renormalised").is_visible()
    assert tab.evaluate("() => headwise.app.view.map.top") == pytest.approx(weights[:, 1:].max().item(), abs=1e-4)
    assert colour(tab, 5, -0.3) != before
    assert tab.evaluate("() => headwise.app.view.map.sink") == 0
    for row, col in [(5, 0), (5, 4)]:
        assert point(tab, row, col) == pytest.approx(weights[row, col].item(), abs=1e-4)
    tab.get_by_role("button", name="Hide the sink").click()
    settle(tab)
    assert tab.evaluate("() => headwise.app.view.map.top") == pytest.approx(weights.max().item(), abs=1e-4)
    assert not tab.get_by_text("not renormalised").is_visible()

    # The sink is the first token that anybody may attend to.
    padded = masks.from_tensor(torch.arange(12).expand(12, 12) >= 3)
    show(tab, tmp_path, look(record(length=12, mask=padded)), "sink=true")
    assert tab.evaluate("() => headwise.app.view.map.sink") == 3
    assert tab.get_by_text("first token attended to (3) hidden").is_visible()


def test_a_map_of_a_hundred_tokens_is_zoomed_and_panned(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record(length=100)), "sight=20,40,20,40")
    before = tab.evaluate("() => [headwise.app.view.map.rows.sight, headwise.app.view.map.cols.sight].flat()")
    assert before[0] <= 20
    assert before[1] >= 40
    # A drag pans, and keys zoom.
    tab.mouse.move(*cell(tab, 30, 30))
    tab.mouse.down()
    tab.mouse.move(*cell(tab, 25, 27), steps=4)
    tab.mouse.up()
    after = state(tab, "sight")[0]
    np.testing.assert_allclose(np.subtract(after, before), [5, 5, 3, 3], atol=0.2)
    assert state(tab, "pinRow") == [None]
    tab.keyboard.press("-")
    wider = state(tab, "sight")[0]
    assert wider[1] - wider[0] == pytest.approx(1.5 * (after[1] - after[0]), rel=0.01)
    said = parse_qs(kept_address(tab))["sight"][0].split(",")
    np.testing.assert_allclose([float(each) for each in said], wider, atol=0.01)
    # Arrows bring the cell into sight.
    for _ in range(30):
        tab.keyboard.press("ArrowRight")
    _, _, left, right = state(tab, "sight")[0]
    col = state(tab, "col")[0]
    assert left <= col <= right - 1
    tab.keyboard.press("0")
    assert state(tab, "sight") == [None]
    # A frame that is drawn with Shift.
    tab.keyboard.down("Shift")
    tab.mouse.move(*cell(tab, 20, 30))
    tab.mouse.down()
    tab.mouse.move(*cell(tab, 30, 40), steps=3)
    tab.mouse.up()
    tab.keyboard.up("Shift")
    row, past_row, col, past_col = state(tab, "sight")[0]
    assert row <= 20 < 31 <= past_row <= 50
    assert col <= 30 < 41 <= past_col <= 60
    assert state(tab, "pinRow") == [None]
    tab.keyboard.press("0")
    # A double click zooms to a cell and back.
    tab.mouse.dblclick(*cell(tab, 60, 40))
    settle(tab)
    row, past_row, col, past_col = state(tab, "sight")[0]
    assert row < 60 < past_row < row + 30
    assert col < 40 < past_col < col + 30
    assert state(tab, "pinRow", "pinCol") == [None, None]  # its two clicks pin and let go
    tab.mouse.dblclick(*cell(tab, 60, 40))
    settle(tab)
    assert state(tab, "sight") == [None]

    # Two fingers zoom.
    show(tab, tmp_path, look(record(length=100)))
    session = tab.context.new_cdp_session(tab)
    x, y = cell(tab, 50, 50)
    for kind, apart in [("touchStart", 20), ("touchMove", 40), ("touchMove", 80), ("touchEnd", None)]:
        fingers = [] if apart is None else [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
    tab.wait_for_function("() => headwise.state.sight")
    row, past_row, col, past_col = state(tab, "sight")[0]
    assert row < 50 < past_row
    assert col < 50 < past_col
    assert past_row - row == pytest.approx(25, rel=0.2)


# ---- pins


def test_clicks_pin_and_the_last_head_asked_for_shows(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record()))
    tab.mouse.move(*label(tab, row=4))
    assert state(tab, "row", "col") == [4, None]
    tab.mouse.move(*label(tab, col=6))
    assert state(tab, "row", "col") == [4, 6]
    clicks = [
        (cell(tab, 2, 5), [2, 5]),
        (label(tab, row=4), [4, 5]),
        (label(tab, col=1), [4, 1]),
        (label(tab, row=4), [None, 1]),
        (cell(tab, 3, 3), [3, 3]),
        (cell(tab, 3, 3), [None, None]),
        (label(tab, row=8), [8, None]),
    ]
    for at, pins in clicks:
        tab.mouse.click(*at)
        assert state(tab, "pinRow", "pinCol") == pins
    tab.keyboard.press("Escape")
    assert state(tab, "pinRow", "pinCol") == [None, None]

    # A head that is asked for while another is computed is the one that shows.
    seen = record(heads=4, kv_heads=4, length=64)
    show(tab, tmp_path, look(seen))
    tab.evaluate("() => [3, 1, 2].forEach((head) => headwise.app.go({ head }))")
    settle(tab)
    assert shown_weight(tab, 5, 6) == pytest.approx(seen.weights(5, 6, 2).item(), abs=1e-4)


# ---- colours; js/colour.test.mjs has those of every scale


def ticks(tab: Page) -> list[str]:
    return tab.locator(".view-head .ticks span").all_inner_texts()


def test_the_colours_and_their_bar_are_those_of_the_weights(tab: Page, tmp_path: Path) -> None:
    seen = record()
    show(tab, tmp_path, look(seen))
    top = seen.weights(heads=0).max().item()
    for name, low, middle in [("√", 0, top / 4), ("log", top / 1e4, top / 100), ("linear", 0, top / 2)]:
        tab.locator(".controls-head").get_by_text(name, exact=True).click()
        said = ticks(tab)
        assert [float(said[i].removeprefix("≤ ")) for i in (0, 2, 4)] == pytest.approx([low, middle, top], rel=0.05)
        assert said[0].startswith("≤") is (name == "log")
        assert not tab.get_by_text("of each row’s largest").is_visible()
    tab.locator(".controls-head").get_by_text("row", exact=True).click()
    assert ticks(tab) == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert tab.get_by_text("of each row’s largest").is_visible()

    # Where a pixel stands for several cells it shows the largest, so that nothing is lost between pixels.
    q, k = torch.zeros(1, 1, 1300, 4), torch.zeros(1, 1, 1300, 4)
    q[0, 0, 801, 0] = k[0, 0, 333, 0] = 10.0
    show(tab, tmp_path, headwise.attention(q, k, k, record=True)[1])
    light = sum(colour(tab, 100, 100))
    assert min(sum(colour(tab, 801 + dy, 333 + dx)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)) < light / 3


# ---- the sink


def sink(length: int) -> torch.Tensor:
    """A bias of the keys that draws everybody to the first."""
    return torch.cat((torch.tensor([9.0]), torch.zeros(length - 1)))


def labelled(svg: Element) -> list[tuple[str, Element]]:
    """The texts of a picture, each with its element."""
    return list(zip(texts_in(svg), svg.iter(f"{SVG}text"), strict=True))


# ---- labels, and what is taken away


def test_labels_are_upright_where_they_should_be_and_never_touch(tab: Page, tmp_path: Path) -> None:
    words = ["[CLS]", "那只", "动物", "没有", "🙂", "because", "它", "太累了", "[SEP]", "שלום", "עולם!"]
    show(tab, tmp_path, look(record(length=11), labels=words))
    found = labelled(saved_svg(tab))
    directions = {text: element.get("direction") for text, element in found}
    assert [directions[word] for word in ("שלום", "עולם!", "because")] == ["rtl", "rtl", None]
    upright = [text for text, element in found if element.get("transform") is None]
    turned = [text for text, element in found if element.get("transform")]
    assert set("那只动物没有🙂它太累了") <= set(upright)  # over the columns, one below the other
    assert {"那只", "动物", "太累了", "because"} <= set(upright)  # beside the rows
    assert "because" in turned
    assert not set("".join(turned)) & set("那只动物没有它太累了")
    point(tab, 2, 7)
    assert [word.inner_text() for word in tab.locator("#cell bdi").all()] == ["动物", "太累了"]

    # Labels never touch.
    show(tab, tmp_path, look(record(length=300)))
    for sight in [None, [10, 80, 10, 80], [100, 110, 100, 110]]:
        tab.evaluate("(sight) => headwise.state.set({ sight, row: 105, col: 106 })", sight)
        settle(tab)
        names = [(text, element) for text, element in labelled(saved_svg(tab)) if re.fullmatch(r"w\d+", text)]
        rows = [float(text.get("y") or 0) for _, text in names if text.get("text-anchor") == "end"]
        turned = [float(found[1]) for _, text in names if (found := TURNED.fullmatch(text.get("transform") or ""))]
        level = [float(text.get("x") or 0) for _, text in names if text.get("text-anchor") == "middle"]
        assert len(rows) > 6
        assert np.diff(sorted(rows)).min() >= 12
        assert len(turned) > 12 or len(level) > 6
        assert np.diff(sorted(turned)).min(initial=12) >= 12
        assert np.diff(sorted(level)).min(initial=30) >= 30


def test_the_picture_and_the_python(tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [*HOSTILE[:-1], "a\x01\x0bb"]  # two signs that no XML may hold
    show(tab, tmp_path, look(record(length=9, mask=masks.causal()), labels=labels))
    for given in ({}, {"scale": "row", "theme": "dark", "sink": True, "pinRow": 2, "row": 1, "col": 3}):
        tab.evaluate("(given) => headwise.app.go(given)", given)
        settle(tab)
        svg = saved_svg(tab)
        assert [element.tag for element in svg.iter() if element.tag.endswith(("script", "img", "foreignObject"))] == []
        shown = texts_in(svg)
        assert {"&lt;", '"', "-->", "\\u003c", "{{", "a\ufffd\ufffdb"} <= set(shown)
        assert any(text.startswith("</script>") for text in shown)
        assert any("layer 0 · head 0" in text for text in shown)
        weights = {text.get("font-weight") for name, text in labelled(svg) if name == labels[1]}
        assert weights == {"400"}  # not the cell in question
        images = [element.get("href") or "" for element in svg.iter(f"{SVG}image")]
        assert images
        assert all(image.startswith("data:image/png;base64,") for image in images)

    # The python makes the like of it.
    pytest.importorskip("matplotlib")
    seen = look(record(length=30), record(length=30))
    show(tab, tmp_path, seen, "layer=1&head=1&scale=log&colours=viridis&sink=true&sight=5,20,10,25")
    code = tab.evaluate("() => headwise.app.view.python()")
    assert "layer=1, head=1" in code
    assert re.search(r"rows=slice\(\d+, \d+\), cols=slice\(\d+, \d+\)", code)
    monkeypatch.chdir(tmp_path)
    exec(f"import headwise\n{code}", {"seen": seen})
    assert (tmp_path / "attention.pdf").stat().st_size > 1000


# ---- the SVG that pictures are written in


def svg_of(tab: Page, drawing: str) -> list[Element]:
    """The elements that some drawing becomes."""
    source = tab.evaluate(
        f"""() => {{ {assemble("map/svg.js")}
            const context = new $map_svg_js.SvgContext(100, 50);
            {drawing}
            return context.toString();
        }}"""
    )
    svg = ElementTree.fromstring(source)
    assert (svg.get("width"), svg.get("viewBox")) == ("100", "0 0 100 50")
    return list(svg)


def test_svg_is_drawn_as_a_canvas_draws(tab: Page) -> None:
    filled, stroked = svg_of(
        tab,
        """
        context.fillStyle = "rgb(255 0 0 / 0.5)"; context.globalAlpha = 0.5;
        context.translate(10, 20); context.fillRect(5, 5, -5, 2.00004);
        context.save(); context.scale(2, 2); context.strokeStyle = "teal"; context.lineWidth = 3;
        context.strokeRect(1, 1, 4, 4); context.restore(); context.fillStyle = "nonsense";
        """,
    )
    assert {key: filled.get(key) for key in ("x", "y", "width", "height", "fill", "fill-opacity")} == {
        **{"x": "10", "y": "25", "width": "5", "height": "2"},
        **{"fill": "#ff0000", "fill-opacity": "0.25"},
    }
    assert (stroked.get("stroke"), stroked.get("stroke-width"), stroked.get("fill")) == ("#008080", "3", "none")
    assert stroked.get("transform") == "matrix(2 0 0 2 10 20)"

    # Svg paths lie where they were drawn.
    line, scaled = svg_of(
        tab,
        """
        context.beginPath(); context.translate(10, 0); context.moveTo(0, 0); context.translate(10, 0);
        context.lineTo(0, 5); context.bezierCurveTo(1, 1, 2, 2, 3, 3); context.stroke();
        context.lineWidth = 2; context.scale(3, 3); context.beginPath(); context.lineTo(1, 1); context.stroke();
        """,
    )
    assert (scaled.get("d"), scaled.get("stroke-width")) == ("M23 3", "6")
    assert line.get("d") == "M10 0L20 5C21 1 22 2 23 3"

    # Svg clips and lets go.
    outer, first, inner, second, third = svg_of(
        tab,
        """
        context.save(); context.beginPath(); context.rect(1, 2, 3, 4); context.clip(); context.fillRect(0, 0, 9, 9);
        context.beginPath(); context.rect(2, 2, 1, 1); context.clip(); context.fillRect(0, 0, 8, 8);
        context.restore(); context.fillRect(0, 0, 7, 7);
        """,
    )
    assert outer[0].get("d") == "M1 2L4 2L4 6L1 6Z"
    assert first.get("clip-path") == f"url(#{outer.get('id')})" == inner.get("clip-path")
    assert second.get("clip-path") == f"url(#{inner.get('id')})"
    assert third.get("clip-path") is None

    # Svg text stands where a canvas puts it.
    first, leftwards, turned = svg_of(
        tab,
        """
        context.font = '700 20px "A & B", sans-serif'; context.textAlign = "right"; context.textBaseline = "middle";
        context.fillText('<b> & "x"\\u0007', 50, 30);
        context.direction = "rtl"; context.fillText("a", 50, 30);
        context.rotate(-Math.PI / 2); context.fillText("b", 1, 2);
        """,
    )
    assert first.text == '<b> & "x"\ufffd'
    assert (first.get("font-family"), first.get("font-size")) == ('"A & B", sans-serif', "20")
    assert first.get("font-weight") == "700"
    assert (first.get("text-anchor"), leftwards.get("text-anchor")) == ("end", "start")
    assert 33 <= float(first.get("y") or 0) <= 40  # letters stand below their middle
    assert turned.get("transform") == "matrix(0 -1 1 0 0 0)"

    # Svg pictures carry their pixels.
    smooth, plain, pattern = svg_of(
        tab,
        """
        const source = new OffscreenCanvas(4, 2); source.getContext("2d").fillRect(0, 0, 4, 2);
        context.drawImage(source, 10, 20, 40, 10); context.imageSmoothingEnabled = false;
        context.drawImage(source, 1, 1, 8, 8);
        context.fillStyle = source.getContext("2d").createPattern(source, "repeat"); context.fillRect(3, 4, 5, 6);
        """,
    )
    assert [smooth.get(key) for key in ("x", "y", "width", "height")] == ["10", "20", "40", "10"]
    assert (smooth.get("style"), plain.get("style")) == (None, "image-rendering:pixelated")
    assert [pattern.get(key) for key in ("x", "y", "width", "height")] == ["3", "4", "5", "6"]
    assert all((image.get("href") or "").startswith("data:image/png;base64,") for image in (smooth, plain, pattern))
