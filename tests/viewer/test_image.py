"""The Image view: the attention of a patch, or of a word, over the image, is that of the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import headwise
from headwise.records import Seen
from headwise.text import Patches

from .browser import SVG, WITHIN, check_largest, kept_address, open_page, saved_svg, texts_in, told
from .conftest import look
from .texts import record

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

ROWS, COLS = 3, 5


def vision(layers: int = 1, prefix: tuple[str, ...] = ("[CLS]",)) -> Seen:
    """A model that reads an image of 3 x 5 patches."""
    patches = Patches(ROWS, COLS, prefix)
    seen = look(*(record(len(patches)) for _ in range(layers)))
    seen.tokens = patches
    return seen


def picture() -> np.ndarray:
    """10 x 10 pixels a patch, each patch of its own grey."""
    grey = np.arange(ROWS * COLS, dtype=np.uint8).reshape(ROWS, COLS) * 15 + 20
    return np.repeat(grey.repeat(10, 0).repeat(10, 1)[..., None], 3, 2)


def show(tab: Page, folder: Path, seen: Any, address: str = "", **given: Any) -> None:
    open_page(tab, folder, seen, f"view=image&scale=linear&{address}", **given)


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
    return tab.evaluate(
        """({ x, y }) => {
            const copy = new OffscreenCanvas(1, 1).getContext('2d');
            const by = devicePixelRatio;
            copy.drawImage(headwise.app.view.canvas, -Math.round((x + 9) * by), -Math.round((y + 9) * by));
            return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        at,
    )


def ramp(tab: Page, share: float) -> list[int]:
    """The colour that stands for this share of the largest weight."""
    return tab.evaluate("(step) => headwise.app.view.palette[step].fill.match(/\\d+/g).map(Number)", round(63 * share))


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

    # Every head of the layer has a small map.
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


def test_cells_have_the_colours_of_their_weights_and_the_image_shows_through(tab: Page, tmp_path: Path) -> None:
    seen = vision()
    show(tab, tmp_path, seen, "row=4")  # no image: the grid alone
    told(tab, 4)
    weights = seen[0].weights(heads=0, rows=4)[0, 0, 0, 1:]
    for token in range(1, 16):
        share = (weights[token - 1] / weights.max()).item()
        np.testing.assert_allclose(pixel(tab, token), ramp(tab, share), atol=12)
    at = pixel(tab, 7)
    tab.get_by_role("button", name="smooth").click()  # colours between those of the cells
    assert pixel(tab, 7) != at
    tab.keyboard.press("m")
    assert pixel(tab, 7) == at

    # The image shows through.
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

    # What the model read is behind its patches.
    seen = vision()
    seen.pixel_values = torch.randn(1, 3, 10 * ROWS, 10 * COLS)
    show(tab, tmp_path, seen, "row=6")
    told(tab, 6)
    tab.wait_for_function("() => headwise.app.view.photo?.width === 50")
    tab.get_by_text("spread from its lowest to its highest value").wait_for()


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


def test_arrows_go_from_patch_to_patch(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, vision(), "row=8")  # (1, 2)
    told(tab, 8)
    # At the lowest row and at the left the arrows stay; above the first row is [CLS].
    steps = [("Right", 9), ("Down", 14), ("Down", 14), ("Up", 9), ("Up", 4), ("Up", 0), ("Down", 1), ("Left", 1)]
    for key, token in steps:
        tab.keyboard.press(f"Arrow{key}")
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

    # Without patches it says what is missing.
    seen = Seen([record(4)])
    seen.tokens = [list("abcd")]
    show(tab, tmp_path, seen)
    assert tab.get_by_text("seen.tokens = headwise.text.Patches(rows, cols)").is_visible()


def test_the_rollout_the_pictures_and_the_python(tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    # Pictures and python.
    seen = vision(2)
    show(tab, tmp_path, seen, "row=6&heads=1.2&layer=0", images=picture())
    told(tab, 6)
    tab.wait_for_function("() => headwise.app.view.photo")
    image = saved_svg(tab)
    # Colour bar, image, overlay; image and overlay of each head.
    assert len(list(image.iter(f"{SVG}image"))) == 3 + 2 * 3
    assert "gives most to" in texts_in(image)[0]
    for direction in ("gives", "gets"):
        tab.evaluate("(direction) => headwise.state.set({ direction, col: 6 })", direction)
        told(tab, 6, direction)
        code, scope = tab.evaluate("headwise.app.view.python()"), {"seen": seen}
        monkeypatch.chdir(tmp_path)
        exec(code, scope)
        over = tab.evaluate("[...headwise.app.view.weights]")
        np.testing.assert_allclose(scope["patches"].ravel(), over, atol=WITHIN)
        assert (tmp_path / "attention.pdf").stat().st_size > 1000
