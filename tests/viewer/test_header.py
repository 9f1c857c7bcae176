"""What the header and the map say of sound, and of tokens that the model does not know."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwise.records import Seen
from headwise.text import Frames
from headwise.viewer import inputs_of, write_page

from .conftest import look, placed, record

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def facts(tab: Page, folder: Path, seen: Seen, address: str = "") -> str:
    write_page(folder / "page.html", inputs_of(seen), title="A page")
    tab.goto("about:blank")
    tab.goto(f"{(folder / 'page.html').as_uri()}#{address}")
    tab.wait_for_function("() => window.headwise?.app")
    return tab.locator("header .facts").text_content() or ""


@pytest.mark.parametrize(("unknown", "said"), [(0, None), (1, "1 of 9 tokens is"), (3, "3 of 9 tokens are")])
def test_the_header_counts_unknown_tokens(unknown: int, said: str | None, tab: Page, tmp_path: Path) -> None:
    seen = look(record())
    assert seen.tokens is not None
    seen.tokens = [dataclasses.replace(seen.tokens[0], unknown=tuple(i < unknown for i in range(9)))]
    found = facts(tab, tmp_path, seen)
    assert ("unknown" in found) == (said is not None)
    assert said is None or f" · {said} unknown to this model · " in found


def test_frames_have_their_time(tab: Page, tmp_path: Path) -> None:
    seen = Seen([placed(record(length=50), "layers.0")])
    seen.tokens = Frames(50, 0.02)
    assert " · 50 frames of 20 ms (1.00 s) · " in facts(tab, tmp_path, seen, "view=head&row=3&col=49")
    tab.get_by_text("0.06 s").first.wait_for()
    assert "0.98 s" in (tab.locator("body").text_content() or "")


def test_both_sides_are_counted_and_a_shared_one_once(tab: Page, tmp_path: Path) -> None:
    seen = Seen([placed(record(length=2, keys=3), "decoder.cross", kind="cross")])
    seen.tokens = {"source": [["a", "[UNK]", "b"]], "target": [["[UNK]", "c"]]}
    assert "2 of 5 tokens are unknown to this model" in facts(tab, tmp_path, seen)
