"""The page of a profile, in a browser: cards, the page of a head, search, keys, themes; and the server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwise.capture.pretrained import Pretrained
from headwise.profiles import Profile, profile
from headwise.viewer.profile_site import ProfileSite
from headwise.viewer.profiled import write_profile_page
from headwise.viewer.server import serving_site

from ..profiles.tiny import Attend, encode, tiny
from .browser import check_as_it_is_with_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=alert(1)> <!-- {{x}} 'quoted' & \u2028 end"
TEXTS = ["the cat saw the dog , and the cat ran", "a man has 3 red cars", "zebra alone", HOSTILE]


@pytest.fixture(scope="module")
def made() -> Profile:
    return profile(tiny(), TEXTS, length=16, name="corpus.txt")


@pytest.fixture
def page(made: Profile, tab: Tab, tmp_path: Path) -> Tab:
    write_profile_page(tmp_path / "heads.html", made, title="profile.hw")
    tab.goto((tmp_path / "heads.html").as_uri())
    tab.locator(".card").first.wait_for()
    return tab


def cards(tab: Tab) -> list[str]:
    return tab.locator(".card b").all_inner_texts()


def test_every_head_is_a_card_sorted_filtered_and_searched(page: Tab, made: Profile) -> None:
    assert cards(page) == ["Layer 0 · head 0", "Layer 0 · head 1"]
    for place, head in enumerate(made.heads()):
        card = page.locator(".card").nth(place)
        shown = card.inner_text()
        assert head.kind[0] in shown
        assert [float(each) for each in card.locator(".value").all_inner_texts()] == pytest.approx(
            [head.means[name] for name in ("entropy", "first_visible", "special")], abs=0.006
        )
        heights = card.locator("rect").evaluate_all("(all) => all.map((each) => Number(each.getAttribute('height')))")
        assert heights.index(max(heights)) == list(head.offsets.values()).index(max(head.offsets.values()))

    # Cards are sorted filtered and searched.
    page.get_by_label("Sort by").select_option("entropy")
    assert cards(page) == ["Layer 0 · head 1", "Layer 0 · head 0"]
    page.get_by_text("highest first").click()
    assert cards(page) == ["Layer 0 · head 0", "Layer 0 · head 1"]
    assert "sort=entropy" in page.evaluate("location.hash")
    page.get_by_label(re.compile("^Does")).select_option("previous token")
    assert cards(page) == ["Layer 0 · head 0"]
    page.get_by_label(re.compile("^Does")).select_option("")
    page.keyboard.press("Escape")
    search = page.get_by_role("searchbox")
    search.fill("CAT")
    assert cards(page) == ["Layer 0 · head 0", "Layer 0 · head 1"]
    assert "cat" in page.locator(".note").first.inner_text()
    search.fill("ca")  # two letters: that token alone
    assert cards(page) == []
    assert "No head fits" in page.locator(".about").inner_text()
    search.fill("nowhere")
    assert page.locator(".count").inner_text() == "0 of 2 heads"
    page.reload()
    assert page.get_by_role("searchbox").input_value() == "nowhere"  # the address keeps it


def test_the_page_of_a_head_and_keys(page: Tab, made: Profile) -> None:
    head = made[0, 0]
    page.locator(".card").first.click()
    page.get_by_role("heading", name="Layer 0 · head 0").wait_for()
    rows = page.locator("section", has=page.get_by_role("heading", name="Strongest pairs")).locator("tbody tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == [
        f"{pair.query} → {pair.key}" for pair in head.pairs(24)
    ]
    figures = page.locator(".example")
    assert figures.count() == len(head.examples) > 1
    for place, example in enumerate(head.examples):
        labels = example.window.tokens.labels
        figure = figures.nth(place)
        assert figure.locator(".token").all_inner_texts() == list(labels)
        assert figure.locator(".query").all_inner_texts() == [labels[example.query]]
        strongest = figure.locator(".token").nth(example.key)
        assert strongest.get_attribute("title") == f"{labels[example.key]}: {example.weights[example.key]:.4f}"
        assert figure.locator(".row li").count() == 0  # the row is made when it is asked for
        figure.get_by_text("The whole row").click()
        figure.locator(".row li").first.wait_for()
        assert figure.locator(".row li").count() == len(labels)
    figures.first.get_by_text("Open this text").click()
    assert figures.first.locator("code").inner_text().startswith("headwise watch --model tiny --out text.hw -- ")

    # Keys.
    page.keyboard.press("Escape")
    page.locator(".card").first.wait_for()
    page.keyboard.press("/")
    assert page.evaluate("headwise.app.root.activeElement.type") == "search"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first card
    page.get_by_role("heading", name="Layer 0 · head 0").wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_role("heading", name="Layer 0 · head 1").wait_for()
    page.keyboard.press("Escape")
    page.locator(".card").first.wait_for()
    page.wait_for_function("headwise.app.root.activeElement?.textContent.includes('head 1')")
    before = page.evaluate("headwise.app.host.dataset.theme")
    page.keyboard.press("t")
    assert page.evaluate("headwise.app.host.dataset.theme") != before


def test_a_narrow_page_fits_and_axe_finds_nothing_serious(made: Profile, axe_tab: Tab, tmp_path: Path) -> None:
    write_profile_page(tmp_path / "heads.html", made, title="profile.hw")
    axe_tab.set_viewport_size({"width": 400, "height": 800})
    for address in ("theme=light", "theme=dark", "theme=light&head=0.0", "theme=dark&head=0.0"):
        axe_tab.goto("about:blank")
        axe_tab.goto((tmp_path / "heads.html").as_uri() + f"#{address}")
        check_as_it_is_with_axe(axe_tab)
        assert axe_tab.evaluate("headwise.app.root.querySelector('.app').scrollWidth") <= 400


def test_a_damaged_page_says_so(made: Profile, tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "heads.html"
    write_profile_page(path, made, title="profile.hw")
    page = path.read_text(encoding="utf-8")
    path.write_text(page.replace('id="facts"', 'id="other"'), encoding="utf-8")
    tab.goto(path.as_uri())
    assert "its facts are missing" in tab.get_by_role("alert").inner_text()


def test_the_server_shows_a_text_in_the_other_views(made: Profile, chromium: Browser) -> None:
    loaded: list[Pretrained] = []

    def load() -> Pretrained:
        loaded.append(tiny())
        return loaded[-1]

    with serving_site(lambda port: ProfileSite(made, load, title="profile.hw", port=port)) as url:
        context = chromium.new_context()
        tab = context.new_page()
        tab.goto(url + "#head=0.0")
        link = tab.get_by_role("link", name="Open this text").first
        link.wait_for()
        assert loaded == []  # the model is loaded when it is needed
        with context.expect_page() as opened:
            link.click()
        shown = opened.value
        shown.wait_for_function("window.headwise?.state")
        example = made[0, 0].examples[0]
        assert shown.evaluate("[headwise.state.layer, headwise.state.head, headwise.state.row]") == [
            0,
            0,
            example.query,
        ]
        assert shown.evaluate("headwise.app.stack.rows.labels") == list(example.window.tokens.labels)
        for wrong, said in (("layer=1&head=0&example=0", "layer"), ("layer=0&head=0&example=99", "example")):
            answer = context.request.get(f"{url}text?{wrong}")
            assert answer.status == 400
            assert said in answer.json()["error"]
        context.close()

    # The server refuses another model.
    other = Pretrained("other", Attend(3.0).eval(), encode, 64)
    site = ProfileSite(made, lambda: other, title="profile.hw", port=1)
    with pytest.raises(ValueError, match="other has other weights than the model of this profile, tiny"):
        site.text_page(0, 0, 0)
