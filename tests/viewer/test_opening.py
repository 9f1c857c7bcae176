"""What a page opens on, in a real browser: the strongest pair, in words, and what to look at next."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from headwise import masks
from headwise.records import AttentionRecord, Seen
from headwise.viewer import inputs_of, write_page
from headwise.viewer.notebook import Inline, Small

from .browser import check_with_axe, kept_address, open_page
from .test_pairs import ANIMAL, IT, LENGTH, WORDS, even, looking, scored

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.browser, pytest.mark.opening]

OPENS = {"layer": 1, "head": 1, "pinRow": IT, "pinCol": ANIMAL}
PLAIN = {"layer": 0, "head": 0, "pinRow": None, "pinCol": None}


def seen() -> Seen:
    """Heads of a previous token, of a sink, an even one, and one in which "it" looks at "animal"."""
    previous, sink = even(), even()
    previous[range(1, LENGTH), range(LENGTH - 1)] = 6
    sink[:, 0] = 5
    found = Seen([scored(previous, sink), scored(even(), looking(IT, ANIMAL))])
    found.tokens = [WORDS]
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("opening") / "page.html"
    write_page(path, inputs_of(seen()), title="A page")
    return path.as_uri()


@pytest.fixture(scope="module")
def shared(context: BrowserContext) -> Iterator[Page]:
    tab = context.new_page()
    yield tab
    tab.close()


@pytest.fixture
def tab(shared: Page, page: str) -> Page:
    """The page as it opens, in the tab that all tests share."""
    return opened(shared, page)


def opened(tab: Page, page: str, address: str = "") -> Page:
    tab.set_viewport_size({"width": 1280, "height": 860})
    tab.goto("about:blank")
    tab.goto(page + (f"#{address}" if address else ""))
    tab.wait_for_function("() => window.headwise?.app")
    return tab


def state(tab: Page, *fields: str) -> dict[str, Any]:
    return tab.evaluate(
        "(fields) => Object.fromEntries(fields.map((field) => [field, headwise.state[field]]))", list(fields or OPENS)
    )


def lines(tab: Page) -> list[str]:
    return tab.locator(".opening .seen p").all_inner_texts()


def test_it_opens_on_the_strongest_pair_and_suggests_others(tab: Page) -> None:
    assert state(tab) == OPENS
    assert lines(tab) == [
        "layer 1 · head 1: it looks at animal, 69 %.",
        "That is 6.9 times an even share: 10 % for each of the 10 tokens that it can see.",
        "A row of the map is a token that looks, a column one that is looked at.",
    ]
    weight = tab.locator(f'#cell[data-cell="{IT},{ANIMAL}"]').get_attribute("data-weight")
    expected = torch.tensor([3.0] + [0.0] * (LENGTH - 1)).softmax(0)[0]
    assert float(weight or 0) == pytest.approx(float(expected), abs=1e-4)
    assert kept_address(tab) == ""

    # Suggestions are heads that exist.
    buttons = tab.locator(".opening li button")
    assert [text.split()[0] for text in buttons.all_inner_texts()] == ["it", "previous", "sink"]
    buttons.nth(2).click()
    assert state(tab) == {"layer": 0, "head": 1, "pinRow": None, "pinCol": None}
    assert lines(tab) == [
        "layer 0 · head 1 gives 94 % to the first token that can be seen, on average over 10 queries: a sink.",
        "In the map: a strong column at the left.",
    ]
    assert buttons.nth(2).get_attribute("aria-current") == "true"
    assert buttons.nth(0).get_attribute("aria-current") is None
    tab.evaluate("headwise.app.go({ layer: 1, head: 0 })")
    assert not tab.locator(".opening .seen").is_visible()  # nothing is said of other heads
    buttons.nth(0).press("Enter")
    assert state(tab) == OPENS

    # Views of all heads show the suggestions only.
    tab.keyboard.press("3")  # the Text view shows the same pair
    tab.locator(f'.attention-caption [data-asked="{IT}"]').wait_for()
    assert "it" in tab.locator(".attention-caption .title").inner_text()
    tab.keyboard.press("1")
    assert not tab.locator(".opening .seen").is_visible()
    tab.locator(".opening li button").nth(1).click()
    assert state(tab, "view", "layer", "head") == {"view": "head", "layer": 0, "head": 0}


def test_it_is_dismissed_and_comes_back(tab: Page, page: str) -> None:
    card = tab.locator(".opening")
    tab.get_by_role("button", name="Hide what to look at (i)").last.click()
    assert not card.is_visible()
    assert tab.evaluate("headwise.app.root.activeElement.title") == "Show what to look at (i)"
    assert kept_address(tab) == "hints=false"
    tab.keyboard.press("i")
    assert card.is_visible()
    tab.keyboard.press("i")
    opened(tab, page, "hints=false")
    assert not card.is_visible()
    assert state(tab) == OPENS
    tab.get_by_role("button", name="Show what to look at (i)").click()
    assert card.is_visible()

    # Another selection comes back by the address.
    for selected in (PLAIN, {**OPENS, "pinCol": None}):
        tab.evaluate("(selected) => headwise.app.go(selected)", selected)
        assert state(opened(tab, page, kept_address(tab))) == selected


def other_page(tab: Page, folder: Path, words: list[str], *records: AttentionRecord) -> None:
    found = Seen(records)
    found.tokens = [words]
    open_page(tab, folder, found)


def test_nothing_is_suggested_where_nothing_is_worth_it(shared: Page, tmp_path: Path) -> None:
    tab = shared
    other_page(tab, tmp_path, WORDS, scored(even(), even()))
    assert state(tab) == PLAIN
    assert not tab.locator(".opening").is_visible()
    assert tab.get_by_role("button", name="what to look at").count() == 0
    # In an even head of few tokens the first one gets (1 + 1/2 + 1/3 + 1/4) / 4: no sink.
    other_page(tab, tmp_path, ["The", "animal", "was", "tired"], scored(torch.zeros(4, 4), mask=masks.causal()))
    assert tab.locator(".opening").is_hidden()
    tab.locator(".legend", has_text="relative to uniform").wait_for()
    # Large numbers are written out.
    scores = torch.zeros(400, 400)
    scores[300, 100] = 20
    other_page(tab, tmp_path, [f"word{i}" for i in range(400)], scored(scores))
    assert lines(tab)[1].startswith("That is 400 times an even share")


def test_no_pair_is_suggested_where_few_tokens_are_known(shared: Page, tmp_path: Path) -> None:
    for unknown, suggested in ((3, ["pair"]), (4, [])):  # of 10
        found = Seen([scored(even(), looking(IT, ANIMAL))])
        found.tokens = [WORDS]
        others = [place for place in range(LENGTH) if place not in (IT, ANIMAL)][:unknown]
        (tokens,) = found.tokens
        found.tokens = [replace(tokens, unknown=tuple(place in others for place in range(LENGTH)))]
        open_page(shared, tmp_path, found)
        kinds = shared.locator(".opening li button").evaluate_all("(all) => all.map(({ dataset }) => dataset.kind)")
        assert kinds == suggested
        assert state(shared)["pinRow"] == (IT if suggested else None)
        assert (len(lines(shared)), lines(shared)[0][:9]) == ((3, "layer 0 ·") if suggested else (1, "The model"))


def test_the_sink_can_be_hidden_where_there_is_one(shared: Page, tmp_path: Path) -> None:
    sink = even()
    sink[:, 0] = 5
    for scores, offered in ((sink, True), (even(), False)):
        other_page(shared, tmp_path, [f"w{i}" for i in range(LENGTH)], scored(scores))
        for view in ("head", "text", "lines", "surface"):
            shared.evaluate("(view) => headwise.state.set({ view })", view)
            assert shared.get_by_role("button", name="Hide the sink").is_visible() == offered
    shared.keyboard.press("h")
    assert shared.get_by_role("button", name="Hide the sink", pressed=True).is_visible()


def test_chinese_has_no_space_before_a_percent_sign(shared: Page, page: str) -> None:
    opened(shared, page, "lang=zh")
    assert lines(shared)[0] == "第 1 层 · 第 1 头：it 关注 animal，权重 69%。"


def test_narrow_pages_show_the_map_first(tab: Page, page: str) -> None:
    tab.set_viewport_size({"width": 400, "height": 800})
    tab.goto("about:blank")
    tab.goto(page)
    tab.wait_for_function("() => window.headwise?.app")
    top = {name: tab.locator(name).bounding_box() for name in (".heat-map", ".opening", ".controls-head")}
    assert top[".heat-map"]["y"] < 200  # type: ignore[index]
    assert top[".heat-map"]["y"] < top[".opening"]["y"] < top[".controls-head"]["y"]  # type: ignore[index]
    assert not tab.locator(".strip .heads").is_visible()
    assert tab.get_by_role("combobox", name="Layer").is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    tab.keyboard.press("b")
    assert tab.locator(".strip .heads").is_visible()
    tab.keyboard.press("/")
    tab.keyboard.type("animal")
    assert tab.locator(".search .count").inner_text() == "1"


def test_axe_finds_nothing(axe_tab: Page, page: str) -> None:
    opened(axe_tab, page)
    check_with_axe(axe_tab)


def test_an_output_of_a_notebook(tab: Page, tmp_path: Path, shared: Page) -> None:
    for small, selected in ((None, OPENS), (Small("map", (0,)), PLAIN)):
        bundle, _ = Inline(inputs_of(seen()), "A page", write="", small=small)._repr_mimebundle_()
        source = re.search(r'srcdoc="(.*?)"', bundle["text/html"], re.DOTALL)
        (tmp_path / "page.html").write_text(html.unescape(source[1]), "utf-8")
        opened(tab, (tmp_path / "page.html").as_uri())
        assert state(tab) == selected
        assert tab.locator(".opening").count() == (small is None)

    # Small lines have the style of their caption.
    shown = Inline(inputs_of(seen()), "Lines", write="", small=Small("lines", (0, 1), IT))
    (tmp_path / "small.html").write_text(shown._repr_mimebundle_()[0]["text/html"], encoding="utf-8")
    shared.goto((tmp_path / "small.html").as_uri())
    items = shared.frame_locator("iframe").locator(".attention-caption ol")
    items.wait_for()
    assert items.evaluate("(list) => getComputedStyle(list).listStyleType") == "none"
