"""The words of the page: the Chinese table has every sentence and no other, and the page is read in Chinese."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwise
from headwise.cli.live import NO_HEAD
from headwise.errors import ArgumentError
from headwise.profiles import CLASSES, KINDS, MEASURES
from headwise.viewer.images import SPREAD
from headwise.viewer.profiled import PATTERNS
from headwise.viewer.statistics import descriptions
from tests.viewer.conftest import look, record, write

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

STATIC = Path(headwise.__file__).parent / "viewer" / "static"
TABLE = json.loads((STATIC / "zh.json").read_text("utf-8"))
STRING = r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''


def scripts() -> Iterator[str]:
    for path in sorted(STATIC.rglob("*.js")):
        yield re.sub(r"(?m)^\s*//.*$", "", path.read_text("utf-8"))


def strings(code: str) -> set[str]:
    """The strings in a piece of code; those that + joins are one."""
    sums = re.findall(rf"(?:{STRING})(?:\s*\+\s*(?:{STRING}))*", code)
    return {"".join(map(_plain, re.findall(STRING, each))) for each in sums}


def _plain(literal: str) -> str:
    return re.sub(r"\\(.)", lambda sign: {"n": "\n"}.get(sign[1], sign[1]), literal[1:-1])


def said(code: str) -> Iterator[str]:
    """What `say`, or an error that it says, is given in a script, up to the values of the sentence."""
    for match in re.finditer(r"\b(?:say|Refusal)\(", code):
        depth, end = 1, match.end()
        while depth and not (depth == 1 and code[end] in ",{"):
            if string := re.compile(STRING).match(code, end):
                end = string.end()
                continue
            depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(code[end], 0)
            end += 1
        found = strings(re.sub(rf"[!=]==\s*(?:{STRING})", "", code[match.end() : end]))
        yield from (text for text in found if re.search(r"\w", text) and text != "_")


def from_python() -> set[str]:
    """What the page is told by Python, and says."""
    told = {text for each in descriptions() for text in (each["name"], each["unit"], each["about"])}
    measures = {text for each in MEASURES for text in (each.name.replace("_", " "), each.unit, each.sentence)}
    patterns = {name.replace("_", " ") for name in PATTERNS} | set(PATTERNS.values())
    return {*told, *measures, *patterns, *KINDS, *KINDS.values(), *CLASSES, SPREAD, NO_HEAD}


def test_every_sentence_of_the_page_is_translated() -> None:
    missing = ({text for code in scripts() for text in said(code)} | from_python()) - TABLE.keys()
    assert sorted(missing) == []


def test_nothing_is_translated_that_the_page_does_not_say() -> None:
    assert sorted(TABLE.keys() - {text for code in scripts() for text in strings(code)} - from_python()) == []


def test_a_translation_has_the_values_of_its_sentence() -> None:
    places = [[set(re.findall(r"\{\w+\}", text)) for text in pair] for pair in TABLE.items()]
    assert [english for english, (there, found) in zip(TABLE, places, strict=True) if there != found] == []


def test_a_page_may_be_written_for_readers_of_a_language(tmp_path: Path) -> None:
    seen = look(record())
    headwise.view(seen, tmp_path / "page.html", language="zh")
    assert '"language":"zh"' in (tmp_path / "page.html").read_text("utf-8")
    with pytest.raises(ArgumentError, match="language must be one of en, zh"):
        headwise.view(seen, tmp_path / "page.html", language="tlh")


@pytest.fixture
def opened(chromium: Browser, tmp_path: Path) -> Iterator[Callable[..., Tab]]:
    """Opens a page of two texts, in a browser that prefers English."""
    write(tmp_path / "page.html", look(record(length=5), record(length=5)), look(record(length=5), record(length=5)))
    contexts = []

    def open_page(address: str = "", **options: object) -> Tab:
        context = chromium.new_context(**{"locale": "en-GB", **options})  # type: ignore[arg-type]
        contexts.append(context)
        tab = context.new_page()
        tab.goto(f"{(tmp_path / 'page.html').as_uri()}{address}")
        tab.get_by_role("tab").first.wait_for()
        return tab

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.browser
def test_every_view_is_read_in_chinese(opened: Callable[..., Tab]) -> None:
    tab = opened("#lang=zh", viewport={"width": 400, "height": 800})
    assert tab.locator("html").get_attribute("lang") == "zh"
    for view in tab.evaluate("[...headwise.app.views].map(({ View }) => View.id)"):
        tab.evaluate("(view) => headwise.state.set({ view })", view)
        tab.wait_for_function("() => !headwise.app.panel.ariaBusy || headwise.app.panel.ariaBusy === 'false'")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    tab.evaluate("headwise.state.set({ view: 'text', form: 'lines', row: 1, col: 1, pinRow: 1 })")
    tab.keyboard.press("?")
    assert tab.evaluate("[...headwise.untranslated]") == []
    assert "lang=zh" in tab.evaluate("headwise.state.write()")  # the address of a link


@pytest.mark.browser
def test_the_switch_or_the_browser_decides_on_the_language(opened: Callable[..., Tab]) -> None:
    tab = opened("#layer=1&head=1")
    assert tab.locator("html").get_attribute("lang") == "en"
    tab.get_by_role("button", name="中文").click()
    tab.get_by_role("tab", name="模型").wait_for()
    assert tab.evaluate("[headwise.state.layer, headwise.state.head, headwise.state.language]") == [1, 1, "zh"]
    tab.get_by_role("button", name="English").click()
    tab.get_by_role("tab", name="Model").wait_for()
    assert "lang=en" in tab.evaluate("location.hash")

    assert opened(locale="zh-CN").locator("html").get_attribute("lang") == "zh"
    assert opened(locale="fr-FR").locator("html").get_attribute("lang") == "en"
