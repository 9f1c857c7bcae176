"""What the header and the map say of sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwise.records import Seen
from headwise.text import Frames
from headwise.viewer import inputs_of, write_page

from .conftest import placed, record

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def test_frames_have_their_time(tab: Page, tmp_path: Path) -> None:
    seen = Seen([placed(record(length=50), "layers.0")])
    seen.tokens = Frames(50, 0.02)
    write_page(tmp_path / "page.html", inputs_of(seen), title="A page")
    tab.goto(f"{(tmp_path / 'page.html').as_uri()}#view=head&row=3&col=49")
    assert " · 50 frames of 20 ms (1.00 s) · " in (tab.locator("header .facts").text_content() or "")
    tab.get_by_text("0.06 s").first.wait_for()
    assert "0.98 s" in (tab.locator("body").text_content() or "")
