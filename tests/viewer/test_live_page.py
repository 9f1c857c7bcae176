"""The live page in a browser: a person types a prompt, edits attention, and sees the probabilities move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwise
from headwise import masks
from headwise.cli.files import NamedText
from headwise.cli.live import live_bert
from headwise.text import Tokenizer
from headwise.viewer import inputs_of
from headwise.viewer.live import Live
from headwise.viewer.server import serving, serving_live

from .browser import check_with_axe, kept_address
from .conftest import ANT, PIG, PROMPT, look, record, write

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def online(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context(viewport={"width": 1280, "height": 860})
    yield context
    context.close()


@pytest.fixture
def page(online: BrowserContext, live_url: str) -> Iterator[Page]:
    """The page, opened; at its end nothing went wrong on the console, but for refusals that a test asks for."""
    page, trouble = online.new_page(), []
    page.on("console", lambda message: "status of 400" in message.text or trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(live_url)
    page.wait_for_selector(".predictions tbody tr")
    yield page
    page.close()
    assert trouble == []


def shares(page: Page, run: str) -> dict[int, float]:
    """What the panel says of a run, by token: what the server says, which test_live.py compares with the model."""
    rows = page.locator(".predictions tbody tr").evaluate_all("(all) => all.map(({ dataset }) => ({ ...dataset }))")
    found = {int(row["token"]): float(row[run]) for row in rows}
    told = page.evaluate("headwise.app.source.live.predictions.tokens")
    assert found == pytest.approx({each["id"]: each[run] for each in told}, abs=1e-6)
    return found


def settled(page: Page, *chips: str) -> None:
    """Wait until the page shows the run with these edits."""
    page.wait_for_function("(count) => headwise.app.source.live.edits.length === count", arg=len(chips))
    page.wait_for_function("() => headwise.app.live.running === null")
    assert page.locator(".chip span").all_inner_texts() == list(chips)


def click_cell(page: Page, row: int, col: int) -> None:
    x, y = page.evaluate("([row, col]) => headwise.app.view.map.centreOf(row, col)", [row, col])
    page.locator(".heat-map canvas").click(position={"x": x, "y": y})


def choose_head(page: Page, layer: int, head: int) -> None:
    page.locator(f'.strip .tile[data-layer="{layer}"][data-head="{head}"]').click()


def test_a_head_is_switched_off_and_an_edge_blocked(page: Page, induction: int) -> None:
    page.evaluate("headwise.state.set({ pinRow: null, pinCol: null })")  # the pair that it opens on
    assert page.locator(".predictions tbody tr").first.locator("bdi").inner_text() == "ant"
    plain = shares(page, "plain")
    assert shares(page, "edited") == plain
    assert plain[2] > 0.9
    assert page.locator(".summary").inner_text() == "No edits: both runs are the same."

    choose_head(page, 1, induction)
    page.get_by_role("button", name=f"Switch off layer 1 · head {induction}").click()
    settled(page, f"layer 1 · head {induction} off")
    edited = shares(page, "edited")
    assert edited[2] < 0.5
    for run, found in (("plain", shares(page, "plain")), ("edited", edited)):  # what a person reads: a number and a bar
        side = page.locator(f'.predictions tr[data-token="2"] td.{run}-side')
        assert side.locator("b").inner_text() == f"{100 * found[2]:.{1 if found[2] >= 0.1 else 2}f}%"
        bar = side.locator("i").evaluate("(bar) => bar.style.getPropertyValue('--share')")
        assert float(bar) == pytest.approx(found[2])
    distance = page.evaluate("headwise.app.source.live.predictions.distance")
    assert page.locator(".summary").inner_text().startswith(f"Total variation {distance:.3f} · KL(plain ‖ edited) ")
    (off,) = page.locator(".strip .tile.off").all()
    assert off.get_attribute("aria-label") == f"layer 1, head {induction} (off)"
    assert f"head {induction} (off)" in page.locator("footer .place").inner_text()
    page.get_by_role("button", name=f"Switch on layer 1 · head {induction}").click()
    settled(page)
    assert shares(page, "edited") == pytest.approx(shares(page, "plain"))
    assert page.locator(".tile.off").count() == 0

    assert page.locator(".edits .hint").inner_text().startswith("Pin a cell")
    click_cell(page, 2, 5)
    assert page.locator(".edits .hint").inner_text() == "A token attends to no later token: there is no edge to block."
    assert page.locator(".edits .scopes, .edits [data-scope]").first.is_hidden()
    click_cell(page, PIG, ANT)
    assert page.locator(".edits .edge").inner_text() == "Block pig → ant"
    for scope, place in (("head", f"layer 1 · head {induction}"), ("everywhere", "everywhere")):
        button = page.locator(f'.edits [data-scope="{scope}"]')
        page.evaluate("window.axis = headwise.app.view.map.what.rows")
        button.click()
        settled(page, f"pig 7 ↛ ant 3 · {place}")
        assert shares(page, "edited")[2] < 0.5
        # The attention shown is that of the edited run, with a mark, at the same place of the map.
        page.locator("#cell b", has_text="blocked").wait_for()
        assert page.evaluate("headwise.app.view.map.marks.blocked") == [[PIG, ANT]]
        assert page.evaluate("headwise.app.view.map.what.rows === window.axis")  # the same tokens
        assert page.locator(".blocked-edge").is_visible()
        assert button.get_attribute("aria-pressed") == "true"
        other = page.evaluate("(head) => headwise.app.live.blockedIn(1, head)", 1 - induction)
        assert other == ([] if scope == "head" else [[PIG, ANT]])
        button.click()  # once more takes it back
        settled(page)
        assert not page.locator(".blocked-edge").is_visible()


def test_edits_are_chips_a_prompt_is_typed_and_predictions_follow_any_token(page: Page, induction: int) -> None:
    keys = page.keyboard
    page.evaluate("headwise.state.set({ pinRow: null, pinCol: null })")
    choose_head(page, 0, 0)
    keys.press("o")
    settled(page, "layer 0 · head 0 off")
    assert page.evaluate("headwise.app.root.activeElement.title").startswith("layer 0 · head 0 (off)")  # still there
    choose_head(page, 1, induction)
    page.evaluate("headwise.state.set({ row: 7, col: 3 })")
    keys.press("e")
    block = f"pig 7 ↛ ant 3 · layer 1 · head {induction}"
    settled(page, "layer 0 · head 0 off", block)
    page.get_by_role("button", name="Remove: layer 0 · head 0 off").press("Enter")
    settled(page, block)
    assert page.evaluate("headwise.app.root.activeElement.ariaLabel") == f"Remove: {block}"
    keys.press("o")
    settled(page, block, f"layer 1 · head {induction} off")
    page.get_by_role("button", name="Reset").click()
    settled(page)
    assert page.evaluate("headwise.app.root.activeElement.textContent").startswith("Switch off layer 1")
    keys.press("?")
    assert "switch this head off, or on again" in page.locator("dialog.help").inner_text()
    keys.press("Escape")
    page.evaluate("headwise.state.set({ row: null, col: null })")

    # A prompt is typed.
    choose_head(page, 1, induction)
    click_cell(page, PIG, ANT)
    page.keyboard.press("e")
    page.keyboard.press("o")
    settled(page, f"pig 7 ↛ ant 3 · layer 1 · head {induction}", f"layer 1 · head {induction} off")
    field = page.get_by_label("Prompt")
    field.fill("elk hen jay elk hen")
    field.press("Enter")
    settled(page, f"layer 1 · head {induction} off")  # the edge named tokens of the other prompt
    assert "Blocked edges were dropped" in page.locator(".status").inner_text()
    assert page.evaluate("headwise.app.stack.rows.labels") == ["elk", "hen", "jay", "elk", "hen"]
    assert page.evaluate("[headwise.state.pinRow, headwise.state.pinCol]") == [None, None]
    page.get_by_role("button", name="Reset").click()
    settled(page)
    assert page.locator(".predictions tbody tr").first.locator("bdi").inner_text() == "jay"

    # Predictions after any token.
    field.fill(PROMPT)
    field.press("Enter")
    page.wait_for_function("() => headwise.app.stack.rows.length === 8")
    choose_head(page, 1, induction)
    page.keyboard.press("o")
    settled(page, f"layer 1 · head {induction} off")
    after = page.get_by_label("After which token")
    assert after.locator("option").all_inner_texts()[5:] == ["5 · cat", "6 · owl", "7 · pig (last)"]
    page.evaluate("window.inputs = headwise.app.source.inputs")
    after.select_option("5 · cat")
    page.wait_for_function("() => headwise.app.source.live.predictions.position === 5")
    assert shares(page, "edited") != shares(page, "plain")
    assert page.evaluate("headwise.app.source.inputs === window.inputs")  # the same run: nothing else is drawn anew
    assert "after=5" in kept_address(page)


def test_the_address_keeps_edits_and_what_is_refused_is_said(page: Page, live_url: str, induction: int) -> None:
    field = page.get_by_label("Prompt")
    field.fill("elk hen jay owl elk hen")
    field.press("Enter")
    page.wait_for_function("() => headwise.app.stack.rows.length === 6")
    choose_head(page, 1, induction)
    page.keyboard.press("o")
    page.evaluate("headwise.state.set({ pinRow: 5, pinCol: 2, after: 4 })")
    page.locator('.edits [data-scope="everywhere"]').click()
    chips = [f"layer 1 · head {induction} off", "hen 5 ↛ jay 2 · everywhere"]
    settled(page, *chips)
    page.wait_for_function("() => headwise.app.source.live.predictions.position === 4")
    known = shares(page, "edited")
    address = kept_address(page)
    assert f"edits=off.1.{induction}%2Cblock.all.all.5.2" in address
    page.reload()
    page.wait_for_selector(".predictions tbody tr")
    settled(page, *chips)
    assert page.evaluate("[headwise.state.pinRow, headwise.state.pinCol, headwise.state.after]") == [5, 2, 4]
    assert shares(page, "edited") == pytest.approx(known)
    assert field.input_value() == "elk hen jay owl elk hen"
    assert kept_address(page) == address

    # What is refused is said and the page goes on.
    page.goto("about:blank")
    page.goto(f"{live_url}#edits=off.0.7")
    page.locator("footer .alert", has_text="are numbered 0 … 1. Received: 7").wait_for()
    settled(page)
    assert page.evaluate("headwise.app.source.live.prompt") == PROMPT
    assert shares(page, "edited")[2] > 0.9

    # What was typed and refused stays.
    field.fill("   ")
    field.press("Enter")
    page.locator("footer .alert", has_text="The prompt is empty").wait_for()
    assert field.input_value() == "   "
    field.fill(PROMPT + " ")
    page.get_by_role("button", name="Run").click()
    page.wait_for_function("(prompt) => headwise.app.source.live.prompt === prompt", arg=PROMPT + " ")


def test_every_view_follows_the_edits(page: Page, induction: int) -> None:
    page.evaluate(
        "(head) => headwise.state.set({ view: 'lines', layer: 1, head, pinRow: null, pinCol: null })", induction
    )
    page.wait_for_function("() => headwise.app.view.columns.drawn.length > 0")
    at = page.evaluate(
        """() => {
            const { columns } = headwise.app.view;
            const { left, right } = columns.plot; // in the middle of a line its height is the mean of both ends
            return { x: (left + right) / 2, y: (columns.middleOf(7) + columns.middleOf(3)) / 2 };
        }"""
    )
    page.locator(".columns canvas").click(position=at)
    assert page.locator(".edits .edge").inner_text() == "Block pig → ant"
    page.locator('.edits [data-scope="head"]').click()
    settled(page, f"pig 7 ↛ ant 3 · layer 1 · head {induction}")
    page.wait_for_function("() => headwise.app.view.columns.shown.blocked[0].length === 1")
    assert not page.evaluate("headwise.app.view.columns.drawn.some(({ row, col }) => row === 7 && col === 3)")
    page.get_by_role("button", name="Reset").click()
    settled(page)
    page.evaluate("headwise.state.set({ layer: 0, head: 0, pinRow: null, pinCol: null })")

    # Each view shows the same as on a page that begins with these edits.
    def texts() -> dict[str, str]:
        found = {}
        for view in ("model", "head", "text", "compare", "flow"):
            page.evaluate("(view) => headwise.state.set({ view, row: 7 })", view)
            page.wait_for_timeout(120)
            page.wait_for_function("() => !headwise.app.panel.innerText.includes('computing')")
            found[view] = page.locator(".panel").inner_text()
        return found

    plain = texts()
    page.evaluate("headwise.state.set({ edits: [{ kind: 'block', layer: 0, heads: 'all', query: 7, key: 6 }] })")
    settled(page, "pig 7 ↛ owl 6 · layer 0 · all heads")
    page.wait_for_timeout(120)
    edited = texts()
    for view, drawn in {"head": "map", "compare": "map.left"}.items():  # their numbers are drawn
        page.evaluate("(view) => headwise.state.set({ view })", view)
        page.wait_for_function(f"() => Number.isNaN(headwise.app.view.{drawn}.plates.weight(7, 6))")
    kept_address(page)
    page.reload()
    page.wait_for_selector(".predictions tbody tr")
    assert texts() == edited
    assert all(plain[view] != edited[view] for view in ("model", "text", "flow"))


def test_narrow_pages_and_screen_readers(axe_tab: Page, live_url: str, induction: int) -> None:
    axe_tab.goto(f"{live_url}#layer=1&head={induction}&edits=off.0.0,block.1.{induction}.7.3&pinrow=7&pincol=3")
    axe_tab.wait_for_selector(".predictions tbody tr")
    check_with_axe(axe_tab)
    axe_tab.set_viewport_size({"width": 390, "height": 800})
    wide = axe_tab.evaluate("[headwise.app.frame.scrollWidth, headwise.app.frame.clientWidth]")
    assert wide[0] <= wide[1]
    for part in (".prompt", ".predictions", ".edits"):
        box = axe_tab.locator(part).bounding_box()
        assert box["width"] <= 390
    axe_tab.set_viewport_size({"width": 1280, "height": 860})


def test_some_layers_of_a_model_and_a_bert(online: BrowserContext, live: Live, induction: int, tiny_bert: Path) -> None:
    with serving_live(Live(live.model, title="Second layer", layers=[1]), PROMPT) as url:
        page = online.new_page()
        page.goto(f"{url}#head={induction}&pinrow=7&pincol=3")
        page.wait_for_selector(".predictions tbody tr")
        page.keyboard.press("o")
        page.keyboard.press("e")  # while the first run may still be asked for
        settled(page, f"layer 1 · head {induction} off", f"pig 7 ↛ ant 3 · layer 1 · head {induction}")
        assert shares(page, "edited")[2] < 0.5
        with page.expect_download() as download:
            page.get_by_role("button", name="Save SVG").click()
        drawn = Path(download.value.path()).read_text(encoding="utf-8")
        assert f"layer 1 · head {induction} (off)" in drawn
        assert drawn.count(page.evaluate("headwise.app.style.error")) == 1  # the cross
        page.close()

    # A bert has edits and says that it predicts nothing.
    bert, tokenizer = headwise.Bert.from_pretrained(tiny_bert), Tokenizer.from_pretrained(tiny_bert)
    with serving_live(
        live_bert(bert, tokenizer, NamedText("TEXT", "the cat", "the cat sat"), None), "the cat sat"
    ) as url:
        page = online.new_page()
        page.goto(url)
        page.locator(".predictions .none", has_text="it predicts no next token").wait_for()
        assert page.locator(".predictions table").is_hidden()
        click_cell(page, 1, 3)  # an encoder attends to later tokens too
        page.locator('.edits [data-scope="head"]').click()
        settled(page, "the 1 ↛ sat 3 · layer 0 · head 0")
        page.locator("#cell b", has_text="blocked").wait_for()
        page.close()


def test_other_pages_have_no_edits(tab: Page, online: BrowserContext, tmp_path: Path, live: Live) -> None:
    seen = look(record(mask=masks.causal()))
    write(tmp_path / "page.html", seen)
    tab.goto((tmp_path / "page.html").as_uri())
    tab.wait_for_function("() => window.headwise")
    served = online.new_page()
    with serving(inputs_of(seen), title="Records") as url:
        served.goto(url)
        served.wait_for_function("() => window.headwise")
        for page in (tab, served):
            assert page.locator(".prompt, .edits, .predictions").count() == 0
            page.keyboard.press("o")
            page.keyboard.press("e")
            assert page.evaluate("headwise.state.edits") == []
            page.keyboard.press("?")
            assert "switch this head off" not in page.locator("dialog.help").inner_text()
        served.close()

    # The server is gone.
    page: Any = online.new_page()
    with serving_live(live, PROMPT) as url:
        page.goto(url)
        page.wait_for_selector(".predictions tbody tr")
    page.keyboard.press("o")
    page.locator("footer .alert", has_text="The server does not answer").wait_for()
    assert page.locator(".chip").count() == 0
    page.close()
