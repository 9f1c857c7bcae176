"""A view is one file and one entry: in a copy of the page's files it has a tab, a key, an address and pictures."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwise.viewer import bundle, page

from .browser import kept_address
from .conftest import look, record, write

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

TOY = """
import { element } from "../shell/element.js";

export class ToyView {
  static id = "toy";
  static title = "Toy";
  static strip = false;

  static why({ stack }) {
    return stack.rows.length > 3 ? "It is for three tokens." : null;
  }

  constructor(app) {
    this.app = app;
    this.element = element("p", { className: "toy" });
    this.keys = { y: [() => app.state.set({ head: 1 }), "the other head"] };
  }

  update() {
    this.element.textContent = `head ${this.app.state.head}`;
  }

  picture() {
    return { width: 8, height: 8, draw: (context) => context.fillRect(1, 1, 2, 2) };
  }
}
"""


@pytest.fixture
def page_with_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of three tokens, of the package's files and a view."""
    static = tmp_path / "static"
    shutil.copytree(Path(str(bundle.STATIC)), static)
    (static / "views" / "toy.js").write_text(TOY, encoding="utf-8")
    text = (static / "views.js").read_text(encoding="utf-8")
    text = 'import { ToyView } from "./views/toy.js";\n' + text.replace("[ModelView,", "[ModelView, ToyView,")
    (static / "views.js").write_text(text, encoding="utf-8")
    monkeypatch.setattr(page, "assemble", functools.partial(bundle.assemble, root=static))
    write(tmp_path / "page.html", look(record(length=3)), look(record(length=4)))
    return tmp_path / "page.html"


def test_a_view_is_one_file_and_one_entry(tab: Page, page_with_toy: Path) -> None:
    tab.goto(page_with_toy.as_uri())
    tab.wait_for_function("() => window.headwise?.app")
    assert tab.get_by_role("tab").all_inner_texts()[:2] == ["Model", "Toy"]
    tab.keyboard.press("2")
    tab.locator(".toy", has_text="head 0").wait_for()
    assert kept_address(tab) == "view=toy"
    tab.keyboard.press("?")
    keys = " ".join(tab.get_by_role("dialog", name="Keyboard").inner_text().split())
    assert "1 … 9 choose a view" in keys
    assert "In Toy y the other head" in keys
    tab.keyboard.press("Escape")
    tab.keyboard.press("y")
    tab.locator(".toy", has_text="head 1").wait_for()
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="Save SVG").click()
    assert waiting.value.suggested_filename == "A-page-toy.svg"

    tab.goto("about:blank")
    tab.goto(f"{page_with_toy.as_uri()}#view=toy&input=1")
    tab.get_by_text("It is for three tokens.").wait_for()
    tab.evaluate("location.hash = 'view=nothing&head=1'")  # no view has this name: the view stays
    tab.wait_for_function("() => headwise.state.head === 1")
    assert tab.get_by_role("tab", selected=True).inner_text() == "Toy"
