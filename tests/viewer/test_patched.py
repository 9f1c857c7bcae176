"""The page of a patching experiment in a real browser: every effect that it shows is one of the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import headwise
from headwise.errors import ArgumentError, FileError
from headwise.experiments import Patching

if TYPE_CHECKING:
    from playwright.sync_api import Page

LABELS = ("the", "cat", "<b>sat</b>", "on")
OTHERS = ("the", "dog", "<b>sat</b>", "on")
SHOWN = ("the", "cat | dog", "<b>sat</b>", "on")


def effects(*shape: int) -> Patching:
    found = torch.randn(*shape) / 4
    found[1, 2] = torch.nan  # a head that this layer does not have
    labels, others = (LABELS, OTHERS) if len(shape) == 3 else ((), ())
    return Patching(("a.0", "a.1"), found, -2 * found, 0.75, 0.25, labels, "Reader", others)


def open_map(tab: Page, folder: Path, found: Patching, address: str = "") -> None:
    page = headwise.view(found, folder / "patching.html")
    tab.goto("about:blank")
    tab.goto(f"{Path(str(page)).as_uri()}#{address}")
    tab.wait_for_function("() => window.headwise?.app")


def cells(tab: Page) -> dict[tuple[int, int], tuple[str, int]]:
    """The effect and the head of each cell, by layer and column."""
    found = tab.locator("td[data-effect]").evaluate_all("(all) => all.map(({ dataset }) => ({ ...dataset }))")
    return {(int(each["layer"]), int(each["column"])): (each["effect"], int(each["head"])) for each in found}


def test_a_file_holds_what_was_found(tmp_path: Path) -> None:
    found = effects(2, 3, 4)
    found.save(tmp_path / "patching.hw")
    again = Patching.load(tmp_path / "patching.hw")
    torch.testing.assert_close(again.effects, found.effects, rtol=0, atol=0, equal_nan=True)
    assert again.attributed is not None
    assert (again.layers, again.labels, again.clean, again.corrupted) == (("a.0", "a.1"), LABELS, 0.75, 0.25)
    assert again.corrupted_labels == OTHERS
    assert "correlation with attribution patching: -1.000: attribution is unreliable here" in str(again)
    (tmp_path / "other.hw").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(FileError, match="is not a file of"):
        Patching.load(tmp_path / "other.hw")


def test_effects_over_edges_have_no_map(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"have no map. Print the largest: print\(headwise"):
        headwise.view(effects(2, 3, 4, 4), tmp_path / "page.html")


@pytest.mark.browser
def test_the_map_has_the_largest_effect_of_each_layer_and_position(tab: Page, tmp_path: Path) -> None:
    found = effects(2, 3, 4)
    open_map(tab, tmp_path, found)
    expected = found.effects.nan_to_num(0).abs().argmax(1)  # [L, Q]
    for (layer, column), (effect, head) in cells(tab).items():
        assert head == expected[layer, column]
        assert float(effect) == pytest.approx(float(found.effects[layer, head, column]), abs=1e-5)
    assert len(cells(tab)) == 8
    assert tab.locator("th[scope=col]").all_inner_texts() == list(SHOWN)
    assert "attribution is unreliable here" in tab.locator(".facts").inner_text()
    numbers = tab.locator("td[data-layer='0'] small").all_inner_texts()
    assert numbers == [f"{float(cells(tab)[0, column][0]):.2f}".replace("-", "−") for column in range(4)]
    assert "metric: clean 0.750, corrupted 0.250" in tab.locator(".facts").inner_text()
    assert "Reader · written on " in tab.locator(".facts").inner_text()
    strongest = [f"{effect:.3f}".replace("-", "−") for effect, *_ in found.strongest()]
    assert [text.split(" · ")[0] for text in tab.locator("ol li").all_inner_texts()] == strongest
    tab.locator("td[data-layer='1'][data-column='2']").hover()
    effect, head = cells(tab)[1, 2]
    said = f"{float(effect):.3f} · layer 1 · head {head} · <b>sat</b> 2".replace("-", "−")
    assert tab.locator(".reading").inner_text() == said
    tab.locator("td[data-layer='1'][data-column='2']").click()
    tab.locator("td[data-layer='0'][data-column='0']").hover()
    assert tab.locator(".reading").inner_text() == said  # pinned
    scale = tab.locator(".colour-bar .ticks").inner_text()

    # One head, and the approximation by gradients.
    tab.get_by_role("combobox").select_option("2")
    assert float(cells(tab)[0, 3][0]) == pytest.approx(float(found.effects[0, 2, 3]), abs=1e-5)
    assert cells(tab)[1, 0][0] == "null"
    tab.get_by_role("button", name="attribution").click()
    assert tab.locator(".colour-bar .ticks").inner_text() == scale  # of every head, and of patching
    assert "beyond them" in tab.locator(".about").inner_text()
    assert float(cells(tab)[0, 3][0]) == pytest.approx(-2 * float(found.effects[0, 2, 3]), abs=1e-5)


@pytest.mark.browser
def test_effects_of_heads_are_a_map_of_layers_and_heads_in_chinese_too(tab: Page, tmp_path: Path) -> None:
    found = effects(2, 3)
    open_map(tab, tmp_path, found, "lang=zh&theme=dark")
    shown = {place: effect for place, (effect, _) in cells(tab).items()}
    assert shown.pop((1, 2)) == "null"
    assert {place: float(effect) for place, effect in shown.items()} == {
        (layer, head): pytest.approx(float(found.effects[layer, head]), abs=1e-5) for layer, head in shown
    }
    assert tab.locator("th[scope=row]").all_inner_texts() == ["第 0 层", "第 1 层"]
    assert tab.evaluate("[...headwise.untranslated]") == []
    tab.set_viewport_size({"width": 400, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    tab.set_viewport_size({"width": 1280, "height": 860})
