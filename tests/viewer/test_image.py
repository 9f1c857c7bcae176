"""The Image view: the attention of a patch, or of a word, over the image, is that of the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import headwise
from headwise.records import AttentionRecord, Seen, Site
from headwise.text import Patches
from headwise.viewer import inputs_of, write_page

from .browser import WITHIN, check_largest, check_with_axe, kept_address, told

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

ROWS, COLS = 3, 5
BOXES = ("document.documentElement", "headwise.app.frame", "headwise.app.panel", "headwise.app.view.element")


def record(length: int, keys: int | None = None, *, heads: int = 3, kind: str = "self") -> AttentionRecord:
    q, k = 1.5 * torch.randn(1, heads, length, 4), torch.randn(1, heads, keys or length, 4)
    made = headwise.attention(q, k, k, record=True)[1]
    made.site = Site("layer", 0, kind, False, heads, heads, 0)  # type: ignore[arg-type]
    return made


def vision(layers: int = 1, prefix: tuple[str, ...] = ("[CLS]",)) -> Seen:
    """A model that reads an image of 3 x 5 patches."""
    patches = Patches(ROWS, COLS, prefix)
    seen = Seen([record(len(patches)) for _ in range(layers)])
    for i, each in enumerate(seen):
        each.site = Site(f"layers.{i}", i, "self", False, 3, 3, 0)
    seen.tokens = patches
    return seen


def picture() -> np.ndarray:
    """10 x 10 pixels a patch, each patch of its own grey."""
    grey = np.arange(ROWS * COLS, dtype=np.uint8).reshape(ROWS, COLS) * 15 + 20
    return np.repeat(grey.repeat(10, 0).repeat(10, 1)[..., None], 3, 2)


def show(tab: Page, folder: Path, seen: Any, address: str = "", **given: Any) -> None:
    path = folder / "page.html"
    write_page(path, inputs_of(seen, **given), title="A page")
    tab.goto("about:blank")
    tab.goto(f"{path.as_uri()}#view=image&scale=linear&{address}")
    tab.wait_for_function("() => window.headwise?.app")


def place(tab: Page, token: int, prefix: int = 1) -> dict[str, float]:
    """The middle of a patch, in pixels of the canvas."""
    width, height = tab.evaluate("(({ canvas }) => [canvas.clientWidth, canvas.clientHeight])(headwise.app.view)")
    row, col = divmod(token - prefix, COLS)
    return {"x": (col + 0.5) * width / COLS, "y": (row + 0.5) * height / ROWS}


def point(tab: Page, token: int) -> None:
    tab.locator(".view-image canvas[role=img]").hover(position=place(tab, token))  # type: ignore[arg-type]


def check(tab: Page, told: list[tuple[int, float]], expected: torch.Tensor, prefix: int = 1) -> None:
    """That the caption lists the largest weights, and what lies over the image are those of the patches."""
    check_largest(told, expected)
    over = tab.evaluate("[...headwise.app.view.weights]")
    np.testing.assert_allclose(over, expected[prefix:], atol=WITHIN)


def pixel(tab: Page, token: int) -> list[int]:
    """The colour of a patch, off its middle and its frame."""
    at = place(tab, token)
    colour: list[int] = tab.evaluate(
        """({ x, y }) => {
            const copy = new OffscreenCanvas(1, 1).getContext('2d');
            const by = devicePixelRatio;
            copy.drawImage(headwise.app.view.canvas, -Math.round((x + 9) * by), -Math.round((y + 9) * by));
            return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        at,
    )
    return colour


def ramp(tab: Page, share: float) -> list[int]:
    """The colour that stands for this share of the largest weight."""
    found: list[int] = tab.evaluate(
        "(step) => headwise.app.view.palette[step].fill.match(/\\d+/g).map(Number)", round(63 * share)
    )
    return found


def test_pointing_at_a_patch_lays_its_attention_over_the_image(tab: Page, tmp_path: Path) -> None:
    seen = vision()
    show(tab, tmp_path, seen, "head=2", images=picture())
    weights = seen[0].weights(heads=2)[0, 0]
    for direction, field in (("gives", "row"), ("gets", "col")):
        tab.evaluate("(direction) => headwise.state.set({ direction })", direction)
        for token in (8, 15):
            point(tab, token)
            found = told(tab, token, direction)
            check(tab, found, weights[token] if direction == "gives" else weights[:, token])
            row, col = divmod(token - 1, COLS)
            name = tab.locator(".view-image canvas[role=img]").get_attribute("aria-label") or ""
            assert f"({row}, {col})" in name
            assert direction in name
            assert tab.evaluate("(field) => headwise.state[field]", field) == token


def test_cells_have_the_colours_of_their_weights(tab: Page, tmp_path: Path) -> None:
    seen = vision()
    show(tab, tmp_path, seen, "row=4")  # no image: the grid alone
    told(tab, 4)
    weights = seen[0].weights(heads=0, rows=4)[0, 0, 0, 1:]
    for token in range(1, 16):
        share = (weights[token - 1] / weights.max()).item()
        np.testing.assert_allclose(pixel(tab, token), ramp(tab, share), atol=12)
    colours = """() => {
        const { canvas } = headwise.app.view;
        const copy = new OffscreenCanvas(canvas.width, 1).getContext('2d');
        copy.drawImage(canvas, 0, -Math.round(canvas.height / 2 + 9));
        const line = copy.getImageData(0, 0, canvas.width, 1).data;
        return new Set(Array.from({ length: line.length / 4 }, (_, i) => line.slice(4 * i, 4 * i + 3).join())).size;
    }"""
    cells = tab.evaluate(colours)
    tab.get_by_role("button", name="smooth").click()  # colours between those of the cells
    assert tab.evaluate(colours) > 3 * cells
    tab.keyboard.press("m")
    assert tab.evaluate(colours) == cells


def test_the_image_shows_through(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, vision(), "row=4", images=picture())
    told(tab, 4)
    tab.wait_for_function("() => headwise.app.view.photo")
    slider = tab.get_by_role("slider", name="Opacity of the colours")
    slider.fill("0")
    for token in (1, 7, 15):
        assert pixel(tab, token) == [15 * (token - 1) + 20] * 3
    slider.fill("100")
    full = pixel(tab, 7)
    assert full != [15 * 6 + 20] * 3
    slider.fill("50")
    np.testing.assert_allclose(pixel(tab, 7), (np.array(full) + 15 * 6 + 20) / 2, atol=2)
    tab.locator("h1").click()
    for _ in range(5):
        tab.keyboard.press("+")
    assert pixel(tab, 7) == full
    assert slider.input_value() == "100"


def test_tokens_beside_the_patches_are_chosen_and_told(tab: Page, tmp_path: Path) -> None:
    seen = vision(prefix=("[CLS]", "[REG1]"))
    show(tab, tmp_path, seen, "row=9", images=picture())
    weights = seen[0].weights(heads=0)[0, 0]
    told(tab, 9)
    note = f"All patches together {weights[9, 2:].sum():#.4g}; [CLS] {weights[9, 0]:#.4g}, [REG1] {weights[9, 1]:#.4g}."
    tab.get_by_text("All patches together").wait_for()
    assert numbers(tab.locator(".attention-caption .note").inner_text()) == pytest.approx(numbers(note), abs=WITHIN)
    chips = tab.locator(".view-image .token")
    assert chips.all_text_contents() == ["[CLS]", "[REG1]"]
    chips.nth(1).click()
    check(tab, told(tab, 1), weights[1], prefix=2)
    assert tab.evaluate("headwise.state.pinRow") == 1


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.replace(";", " ").replace(",", " ").rstrip(".").split() if word[0].isdigit()]


def test_several_heads_are_averaged_and_the_sink_is_left_out_of_the_colours(tab: Page, tmp_path: Path) -> None:
    seen = vision(2, prefix=())
    show(tab, tmp_path, seen, "row=6&heads=1.2", images=picture())
    expected = (seen[0].weights(heads=0, rows=6) + seen[1].weights(heads=2, rows=6))[0, 0, 0] / 2
    check(tab, told(tab, 6, "mean of 2 heads: 0.0, 1.2"), expected, prefix=0)
    tab.evaluate("headwise.state.set({ heads: [], sink: true })")
    tab.get_by_text("is hidden as the sink").wait_for()
    weights = seen[0].weights(heads=0, rows=6)[0, 0, 0]
    over = tab.evaluate("[...headwise.app.view.weights].map(String)")
    assert over[0] == "NaN"
    np.testing.assert_allclose([float(each) for each in over[1:]], weights[1:], atol=WITHIN)


def test_arrows_go_from_patch_to_patch(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, vision(), "row=8")  # (1, 2)
    told(tab, 8)
    for key, token in [
        ("ArrowRight", 9),
        ("ArrowDown", 14),
        ("ArrowDown", 14),  # the lowest row
        ("ArrowUp", 9),
        ("ArrowUp", 4),
        ("ArrowUp", 0),  # [CLS]
        ("ArrowLeft", 0),
        ("ArrowDown", 1),
        ("ArrowLeft", 1),
    ]:
        tab.keyboard.press(key)
        tab.wait_for_function("(row) => headwise.state.row === row", arg=token)
    tab.keyboard.press("Enter")
    assert tab.evaluate("headwise.state.pinRow") == 1
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("[headwise.state.row, headwise.state.col]") == [1, 7], "while one is held the others are read"
    told(tab, 1, "(0, 0) 1 → (1, 1) 7")
    tab.keyboard.press("Escape")
    assert tab.evaluate("headwise.state.pinRow") is None
    tab.keyboard.press("g")
    told(tab, 7, "gets most from")


def test_a_text_that_looks_at_an_image(tab: Page, tmp_path: Path) -> None:
    patches = Patches(ROWS, COLS)
    words = ["a", "fox", "on", "a", "hill"]
    seen = Seen([record(len(words), len(patches), kind="cross")])
    seen.tokens = {"source": patches, "target": [words]}
    show(tab, tmp_path, seen, images=picture())
    weights = seen[0].weights(heads=0)[0, 0]
    button = tab.get_by_role("button", name="rollout")
    assert button.is_disabled()
    assert button.get_attribute("title") == "A rollout needs self-attention."
    texts = tab.locator(".view-image .running")
    assert texts.nth(0).locator(".token").all_text_contents() == words
    texts.nth(0).locator(".token").nth(1).click()
    check(tab, told(tab, 1, "fox"), weights[1])
    point(tab, 7)
    tab.get_by_text("fox 1 → (1, 1) 7").first.wait_for()
    read = tab.locator(".attention-caption .words[data-weight]").get_attribute("data-weight")
    assert float(read or -1) == pytest.approx(weights[1, 7].item(), abs=WITHIN)

    tab.keyboard.press("Escape")
    tab.keyboard.press("g")
    point(tab, 7)
    found = told(tab, 7, "gets most from")
    check_largest(found, weights[:, 7])
    assert tab.evaluate("headwise.app.view.weights") is None, "nothing lies over the image: the words are coloured"
    codes = tab.evaluate("[...headwise.app.view.texts[0].running.codes]")
    np.testing.assert_allclose([max(code, 0) for code in codes], 63 * weights[:, 7] / weights[:, 7].max(), atol=2)


def test_without_patches_it_says_what_is_missing(tab: Page, tmp_path: Path) -> None:
    seen = Seen([record(4)])
    seen.tokens = [list("abcd")]
    show(tab, tmp_path, seen)
    assert tab.get_by_text("seen.tokens = headwise.text.Patches(rows, cols)").is_visible()


def test_it_fits_a_narrow_window(tab: Page, tmp_path: Path) -> None:
    tab.set_viewport_size({"width": 400, "height": 800})
    show(tab, tmp_path, vision(), "row=3&col=5", images=picture())
    told(tab, 3)
    for box in BOXES:
        assert tab.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0, box
    width = tab.evaluate("headwise.app.view.canvas.clientWidth")
    assert 250 < width <= 400


def test_pictures_and_python(tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = vision(2)
    show(tab, tmp_path, seen, "row=6&heads=1.2&layer=0", images=picture())
    told(tab, 6)
    tab.wait_for_function("() => headwise.app.view.photo")
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save SVG").click()
    image = ElementTree.parse(download.value.path())
    assert len(list(image.iter("{http://www.w3.org/2000/svg}image"))) == 3 + 2 * 3, (
        "colour bar, image, overlay; image and overlay of each head"
    )
    said = ["".join(each.itertext()) for each in image.iter("{http://www.w3.org/2000/svg}text")]
    assert "gives most to" in said[0]
    for direction in ("gives", "gets"):
        tab.evaluate("(direction) => headwise.state.set({ direction, col: 6 })", direction)
        told(tab, 6, direction)
        code, scope = tab.evaluate("headwise.app.view.python()"), {"seen": seen}
        monkeypatch.chdir(tmp_path)
        exec(code, scope)
        over = tab.evaluate("[...headwise.app.view.weights]")
        np.testing.assert_allclose(scope["patches"].ravel(), over, atol=WITHIN)
        assert (tmp_path / "attention.pdf").stat().st_size > 1000


def test_axe_finds_nothing_serious(axe_tab: Page, tmp_path: Path) -> None:
    show(axe_tab, tmp_path, vision(), "row=3&col=0", images=picture())
    told(axe_tab, 3)
    check_with_axe(axe_tab)


def test_every_head_of_the_layer_has_a_small_map(tab: Page, tmp_path: Path) -> None:
    seen = vision(2)
    show(tab, tmp_path, seen, "layer=1&row=6", images=picture())
    told(tab, 6)
    maps = tab.locator(".view-image .maps button")
    assert maps.all_text_contents() == ["head 0", "head 1", "head 2"]
    assert tab.locator(".view-image .maps h2").text_content() == "Every head of layer 1"
    found = tab.evaluate("headwise.app.view.maps.maps.map(({ weights }) => [...weights])")
    expected = seen[1].weights(rows=6)[0, :, 0, 1:]
    np.testing.assert_allclose(found, expected, atol=WITHIN)
    assert tab.evaluate("headwise.app.view.maps.top") == pytest.approx(float(expected.max()), abs=WITHIN)
    maps.nth(2).click()
    told(tab, 6, "head 2")
    assert [each.get_attribute("aria-pressed") for each in maps.all()] == ["false", "false", "true"]
    tab.keyboard.press("Escape")
    tab.evaluate("headwise.state.set({ row: null, pinRow: null })")
    tab.wait_for_function("() => headwise.app.view.maps.element.hidden")


def test_the_rollout_lies_over_the_image(tab: Page, tmp_path: Path) -> None:
    seen = vision(3)
    show(tab, tmp_path, seen, "row=6", images=picture())
    told(tab, 6)
    tab.keyboard.press("r")
    for token in (6, 0):
        tab.evaluate("(row) => headwise.state.set({ row })", token)
        tab.get_by_text("is made of: rollout over 3 layers").wait_for()
        found = told(tab, token)
        expected = headwise.analyses.rollout(seen, rows=token)[0, 0]
        check(tab, found, expected)
    assert "over=rollout" in kept_address(tab)
    code = tab.evaluate("headwise.app.view.python()")
    names: dict[str, Any] = {"seen": seen}
    exec(code.replace('figure.savefig("attention.pdf")', ""), names)
    np.testing.assert_allclose(names["patches"].reshape(-1), expected[1:], atol=WITHIN)


def test_what_the_model_read_is_behind_its_patches(tab: Page, tmp_path: Path) -> None:
    seen = vision()
    seen.pixel_values = torch.randn(1, 3, 10 * ROWS, 10 * COLS)
    show(tab, tmp_path, seen, "row=6")
    told(tab, 6)
    tab.wait_for_function("() => headwise.app.view.photo?.width === 50")
    tab.get_by_text("spread from its lowest to its highest value").wait_for()
