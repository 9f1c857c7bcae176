"""The Text view: running text, coloured and told by the weights of the record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.records import Seen, grouped

from .browser import SVG, WITHIN, check_largest, open_page, saved_svg, texts_in, told, weights_in
from .conftest import look
from .texts import PIECES, record, seen_of, tokens_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser


def show(tab: Page, folder: Path, seen: Any, address: str = "", **given: Any) -> None:
    open_page(tab, folder, seen, f"view=text&{address}", **given)
    tab.wait_for_function("() => headwise.app.view")


def token(tab: Page, number: int, block: int = 0) -> Locator:
    return tab.locator(".running").nth(block).locator(".token").nth(number)


def point(tab: Page, number: int, block: int = 0) -> None:
    token(tab, number, block).hover()


def steps(tab: Page, block: int = 0) -> list[int]:
    """How far along the ramp each token is coloured, 0 to 63; -1 plain, -2 masked, -3 hidden as the sink."""
    return tab.evaluate("(block) => [...headwise.app.view.blocks[block].running.codes]", block)


def check(tab: Page, told: list[tuple[int, float]], expected: torch.Tensor, block: int = 0) -> None:
    """That the caption lists the largest weights, and the colours are those of all weights."""
    check_largest(told, expected)
    shown = [max(step, 0) for step in steps(tab, block)]
    np.testing.assert_allclose(shown, 63 * expected.where(expected >= 0.02, 0), atol=1)  # in any text; small ones plain


# ---- what a token gives and gets


def test_a_token_tells_what_it_gives_or_gets_in_one_head_or_several(tab: Page, tmp_path: Path) -> None:
    seen = record()
    show(tab, tmp_path, seen_of(seen, record()), "head=1")
    weights = seen.weights(heads=1)[0, 0]
    for direction, field, said in (("gives", "row", "gives most to"), ("gets", "col", "gets most from")):
        tab.evaluate("(direction) => headwise.state.set({ direction })", direction)
        for number in (2, 7):
            point(tab, number)
            found = told(tab, number, said)
            check(tab, found, weights[number] if direction == "gives" else weights[:, number])
            first = tab.locator(".attention-caption li").first
            assert first.inner_text().split() == [f"w{found[0][0]}", str(found[0][0]), f"{found[0][1]:#.4g}"]
            assert f"w{number} {number} {said}" in caption(tab)
            assert tab.evaluate("(field) => headwise.state[field]", field) == number
            assert "asked" in (token(tab, number).get_attribute("class") or "")

    # Several heads are averaged and named.
    both = [record(), record()]
    show(tab, tmp_path, seen_of(*both), "row=4&layer=1&head=2&heads=0.1,1.0")
    first, second = (each.weights(rows=4)[0, :, 0] for each in both)
    check(tab, told(tab, 4, "mean of 3 heads"), (second[2] + first[1] + second[0]) / 3)
    assert "mean of 3 heads: 1.2, 0.1, 1.0" in caption(tab)
    tab.keyboard.press("[")
    check(tab, told(tab, 4, "mean of 3 heads: 0.2"), (first[2] + first[1] + second[0]) / 3)

    # Colours are those of the ramp.
    show(tab, tmp_path, seen_of(record()), "row=3&scale=root&colours=viridis")
    told(tab, 3)
    for number, step in enumerate(steps(tab)):
        palette = tab.evaluate("(step) => headwise.app.view.palette[step]", step)
        style = token(tab, number).evaluate("(span) => [span.style.backgroundColor, span.style.color]")
        assert style == ["", ""] if step < 0 else [palette["fill"].replace(" ", ", "), ink(palette["ink"])]
    dark, light = tab.evaluate("[63, 0].map((step) => headwise.app.view.palette[step].ink)")
    assert dark != light  # both can be read


def caption(tab: Page) -> str:
    return tab.locator(".attention-caption").inner_text().replace("\n", " ")


def ink(colour: str) -> str:
    return "rgb({}, {}, {})".format(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)))


def test_words_are_coloured_as_one(tab: Page, tmp_path: Path) -> None:
    """test_modules.py compares the numbers of words and of sentences, given and got."""
    allowed = torch.ones(len(PIECES), len(PIECES), dtype=torch.bool).tril()
    allowed[2] = False
    tokens, seen = tokens_of(PIECES), record(len(PIECES), mask=masks.from_tensor(allowed))
    show(tab, tmp_path, seen_of(seen, tokens=tokens), "head=1&level=words")
    groups = tokens.words()
    point(tab, 3)
    group = groups.group_of(3)
    check_largest(told(tab, group, groups.labels[group]), grouped(seen, groups, groups)[0, 1, group])
    codes = steps(tab)
    for place, span in enumerate(groups.spans):
        assert len({codes[i] for i in span}) == 1
        assert (codes[span[0]] == -2) == (place > group)
    assert tab.locator(".token.asked").count() == len(groups.spans[group])
    gaps = tab.evaluate("headwise.app.view.blocks[0].running.gaps.map((gap) => gap && gap.code)")
    for i, gap in enumerate(gaps):  # a space within a group has its colour
        assert gap in (None, codes[i] if groups.index[i] == groups.index[i - 1] else -1)
    tab.evaluate("headwise.state.set({ level: 'tokens', row: 2 })")
    tab.get_by_text("the mask forbids all").wait_for()
    assert told(tab, 2) == []
    assert set(steps(tab)) == {-2}


def test_masked_tokens_and_the_sink_are_marked_and_told(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, seen_of(record(mask=masks.causal())), "pinrow=3&col=6")
    told(tab, 3)
    assert steps(tab)[4:] == [-2] * 5
    assert all("masked" in (token(tab, i).get_attribute("class") or "") for i in range(4, 9))
    assert "masked w3 3 → w6 6" in caption(tab)

    # The sink is hidden and said to be.
    seen = record()
    row = int(seen.weights(heads=0, cols=0).argmax())  # in which it would be listed
    show(tab, tmp_path, seen_of(seen), f"row={row}&sink=true")
    tab.get_by_text("is hidden as the sink").wait_for()
    weights = seen.weights(heads=0, rows=row)[0, 0, 0]
    assert weights[0] > weights.median()
    found = told(tab, row)
    assert 0 not in [place for place, _ in found]
    np.testing.assert_allclose(weights_in(found), weights[1:].sort(descending=True).values[:5], atol=WITHIN)
    assert steps(tab)[0] == -3
    assert steps(tab)[found[0][0]] == pytest.approx(63 * found[0][1], abs=1)
    hidden = re.search(r"w0 0 ([\d.]+) is hidden as the sink", caption(tab))
    assert float(hidden[1]) == pytest.approx(weights[0].item(), abs=WITHIN)
    tab.get_by_role("button", name="Hide the sink").click()
    tab.wait_for_function("() => headwise.app.view.blocks[0].running.codes[0] !== -3")
    check(tab, told(tab, row), weights)


# ---- holding, and what other views see


def test_two_texts_stand_side_by_side_and_a_text_stays_as_it_was_written(tab: Page, tmp_path: Path) -> None:
    seen = Seen([record(4, 6, kind="cross")])
    seen.tokens = {"source": [list("abcdef")], "target": [list("uvwx")]}
    show(tab, tmp_path, seen)
    assert tab.locator(".view-text h2").all_inner_texts() == ["Queries", "Keys"]
    weights = seen[0].weights(heads=0)[0, 0]
    point(tab, 2)
    check(tab, told(tab, 2), weights[2], block=1)
    assert set(steps(tab, 0)) == {-1}
    point(tab, 5, block=1)  # reads out, and does not ask
    tab.get_by_text("w 2 → f 5").first.wait_for()
    read = tab.locator(".attention-caption .words[data-weight]").get_attribute("data-weight")
    assert float(read or -1) == pytest.approx(weights[2, 5].item(), abs=WITHIN)
    tab.keyboard.press("g")
    check(tab, told(tab, 5), weights[:, 5], block=0)
    point(tab, 0, block=1)
    check(tab, told(tab, 0), weights[:, 0], block=0)

    # The text stays as it was written.
    texts = {
        "chinese": ["[CLS]", "那", "+只", "+🙂", "+动物", "+。", "[SEP]"],
        "arabic": ["[CLS]", "لم", "تع", "+بر", "+\n", "שלום", "עולם", "+\n", "Latin", "[SEP]"],
        "lines": ["one", "+\n", "+\n", "+    two", "+\n", "three"],
    }
    for name, pieces in texts.items():
        tokens = tokens_of(pieces)
        show(tab, tmp_path, seen_of(record(len(pieces)), tokens=tokens))
        lines = tab.locator(".running > *").evaluate_all(
            """(lines) => lines.map((line) => [...line.childNodes].filter((node) => !node.matches('.chip'))
                .map((node) => node.textContent).join(''))"""
        )
        written = "\n".join(line.replace("\n", "").replace("⏎", "") for line in lines)
        assert written.strip() == tokens.text.strip(), name
    show(tab, tmp_path, seen_of(record(10), tokens=tokens_of(texts["arabic"])))
    ways = tab.locator(".paragraph").evaluate_all("(all) => all.map((each) => getComputedStyle(each).direction)")
    assert ways == ["rtl", "rtl", "ltr"], "[CLS] has no say in it"

    # Signs unknown words and what was cut are marked.
    tokens = tokens_of(PIECES, cut=12, unknown=tuple(i == 5 for i in range(len(PIECES))))
    show(tab, tmp_path, seen_of(record(len(PIECES)), tokens=tokens))
    assert tab.locator(".token.chip").all_text_contents() == ["[CLS]", "[SEP]"]
    assert tab.locator(".token.unknown").all_text_contents() == ["cat"]
    assert "[UNK]" in (token(tab, 5).get_attribute("title") or "")
    assert tab.get_by_text("12 more tokens did not fit").is_visible()

    # Generated text is marked off.
    show(tab, tmp_path, seen_of(record(mask=masks.causal())), generated=6)
    parts = tab.locator(".running > *").all_text_contents()
    assert [" ".join(part.split()) for part in parts] == ["w0 w1 w2 w3 w4 w5", "generated", "w6 w7 w8"]
    assert tab.locator(".token.own").count() == 3


# ---- the text itself


# ---- the keyboard


def test_arrows_go_through_the_text_and_a_token_is_held(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, seen_of(record(60), tokens=tokens_of([f"word{i}" for i in range(60)])), "row=10")
    told(tab, 10)
    tab.keyboard.press("ArrowRight")
    told(tab, 11)
    tab.locator(".running").focus()
    tab.keyboard.press("ArrowLeft")
    told(tab, 10)
    active = tab.locator(".running").get_attribute("aria-activedescendant")
    assert tab.locator(f"#{active}").inner_text() == "word10"
    assert tab.locator(f"#{active}").get_attribute("aria-selected") == "true"
    assert tab.locator(".running [tabindex]").count() == 0, "one stop for the whole text"
    tab.keyboard.press("ArrowDown")
    tab.wait_for_function("() => headwise.state.row > 11")
    for key, row in (("ArrowUp", 10), ("End", 59), ("Home", 0)):
        tab.keyboard.press(key)
        told(tab, row)
    tab.keyboard.press("Enter")
    tab.keyboard.press("ArrowRight")  # while a token is held the others are read out
    tab.wait_for_function("() => headwise.state.col === 1")
    assert tab.evaluate("[headwise.state.pinRow, headwise.state.row]") == [0, 0]

    # Arrows go the way the text runs.
    show(tab, tmp_path, seen_of(record(4), tokens=tokens_of(["שלום", "עולם", "זה", "טקסט"])), "row=1")
    told(tab, 1)
    tab.keyboard.press("ArrowLeft")
    told(tab, 2)
    tab.keyboard.press("ArrowRight")
    told(tab, 1)

    # A token is held by a click or set elsewhere or found.
    seen = record()
    show(tab, tmp_path, seen_of(seen))
    token(tab, 2).click()
    assert tab.evaluate("headwise.state.pinRow") == 2
    point(tab, 6)
    read = tab.locator(".attention-caption .words[data-weight]")
    tab.get_by_text("w2 2 → w6 6").first.wait_for()
    assert float(read.get_attribute("data-weight") or -1) == pytest.approx(seen.weights(2, 6, 0).item(), abs=WITHIN)
    assert tab.evaluate("[headwise.state.row, headwise.state.col]") == [2, 6]
    told(tab, 2, "pinned: Esc unpins")
    tab.keyboard.press("Escape")
    assert tab.evaluate("headwise.state.pinRow") is None
    point(tab, 4)
    told(tab, 4)
    tab.keyboard.press("Enter")
    assert tab.evaluate("headwise.state.pinRow") == 4
    token(tab, 4).click()
    assert tab.evaluate("headwise.state.pinRow") is None

    # What the search finds is marked.
    tab.keyboard.press("/")
    tab.keyboard.type("w7")
    tab.locator(".token.found").wait_for()
    assert tab.locator(".token.found").all_text_contents() == ["w7"]
    tab.keyboard.press("Escape")
    assert tab.locator(".token.found").count() == 0

    # It follows the row that is set elsewhere.
    seen = record(400)
    show(tab, tmp_path, seen_of(seen), "row=1")
    told(tab, 1)
    tab.evaluate("headwise.state.set({ row: 390, pinCol: 5 })")
    told(tab, 390)
    box = token(tab, 390).bounding_box()
    assert 0 < box["y"] < 860, "brought into sight"
    tab.evaluate("headwise.state.set({ direction: 'gets' })")
    check_largest(told(tab, 5), seen.weights(heads=0, cols=5)[0, 0, :, 0])


# ---- long texts


def test_a_long_text_recolours_only_what_changes(tab: Page, tmp_path: Path) -> None:
    length = 4096
    pieces = [f"word{i}" + "." * (i % 19 == 18) for i in range(length)]
    seen = record(length, heads=1, mask=masks.window(40, 0))
    show(tab, tmp_path, seen_of(seen, tokens=tokens_of(pieces)), "row=2000&scale=linear")
    told(tab, 2000)
    assert tab.locator(".running .paragraph").count() == 3  # cut with a sign, so that a browser can skip parts
    assert tab.locator(".running .paragraph.continued").count() == 2
    tab.evaluate(
        """() => {
            window.changed = 0;
            const watch = new MutationObserver((all) => (window.changed += all.length));
            watch.observe(headwise.app.view.element.querySelector('.running'), { subtree: true, attributes: true });
        }"""
    )
    tab.evaluate("headwise.state.set({ row: 2001 })")
    check(tab, told(tab, 2001), seen.weights(heads=0, rows=2001)[0, 0, 0])
    assert 0 < tab.evaluate("window.changed") < 400, "a window of 41 tokens moved by one"


# ---- ways out


def test_the_picture_has_the_text_and_its_colours(tab: Page, tmp_path: Path) -> None:
    words = ["[CLS]", "دخل", "+نا", "cats", "&", "<b>", "[SEP]"]
    show(tab, tmp_path, seen_of(record(7), tokens=tokens_of(words)), "row=3")
    told(tab, 3)
    image = saved_svg(tab)
    texts = texts_in(image)
    for word in ("[CLS]", "cats", "&", "<b>"):
        assert word in texts
    assert texts.count("دخلنا") == 2, "letters that join are shaped together, once for each token's colour"
    fills = {each.get("fill") for each in image.iter(f"{SVG}rect")}
    strongest = tab.evaluate(
        "(code) => headwise.app.view.palette[code].fill.match(/\\d+/g).map(Number)", max(steps(tab))
    )
    assert "#{:02x}{:02x}{:02x}".format(*strongest) in fills


SELECTIONS: list[dict[str, Any]] = [
    {"col": 4, "direction": "gets", "head": 1, "scale": "log", "colours": "grey"},
    {"row": 4, "head": 1, "heads": [[1, 0], [0, 2]]},
    {"col": 4, "direction": "gets", "level": "sentences", "heads": [[1, 1]]},
]


def test_the_python_gives_what_is_in_sight(
    tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tokens_of(PIECES)
    seen = look(record(len(PIECES)), record(len(PIECES)))
    seen.tokens = tokens
    show(tab, tmp_path, seen)
    monkeypatch.chdir(tmp_path)
    items = tab.locator(".attention-caption li[data-place]")
    for given in SELECTIONS:
        usual = {"row": None, "col": None, "head": 0, "heads": [], "level": "tokens", "direction": "gives"}
        tab.evaluate("(usual) => headwise.state.set(usual)", usual)
        items.first.wait_for(state="detached")
        tab.evaluate("(given) => headwise.state.set(given)", given)
        items.first.wait_for()
        exec(tab.evaluate("headwise.app.view.python()"), {"seen": seen, "headwise": headwise})
        printed = [line.split(" ", 1) for line in capsys.readouterr().out.splitlines()]
        if not printed:
            assert (tmp_path / "attention.pdf").stat().st_size > 1000
            (tmp_path / "attention.pdf").unlink()
            continue
        assert [label for _, label in printed] == items.locator("bdi").all_text_contents()
        weights = [float(item.get_attribute("data-weight") or -1) for item in items.all()]
        np.testing.assert_allclose([float(weight) for weight, _ in printed], weights, atol=WITHIN)


def test_levels_are_offered_that_put_tokens_together(tab: Page, tmp_path: Path) -> None:
    seen = headwise.attention(*torch.randn(3, 1, 2, 8, 4), record=True)[1]
    for names, offered in ((list("to be or"), ["tokens", "words", "sentences"]), (WORDS, ["tokens", "sentences"])):
        found = Seen([seen])
        found.tokens = [names]
        show(tab, tmp_path, found, "row=0")
        buttons = tab.get_by_role("group", name="Read as").get_by_role("button")
        assert buttons.all_inner_texts() == offered
    tab.keyboard.press("w")
    assert tab.evaluate("headwise.state.level") == "sentences"


def test_nothing_of_the_caption_is_cut_on_a_phone(tab: Page, tmp_path: Path) -> None:
    tab.set_viewport_size({"width": 400, "height": 800})
    show(tab, tmp_path, seen_of(record()), "")
    tab.locator(".attention-caption .title", has_text="layer 0 · head 0").wait_for()
    assert tab.locator(".attention-caption .title").evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0
    assert "cell" not in tab.locator("footer .cell").inner_text()  # a text has none
    tab.set_viewport_size({"width": 1280, "height": 860})


def test_special_tokens_look_like_no_edit(tab: Page, tmp_path: Path) -> None:
    """Both are chips; a border in the colour of an error belongs to edits."""
    show(tab, tmp_path, seen_of(record(16), tokens=[tokens_of(PIECES)]))
    sign = tab.locator(".running .chip").first
    assert sign.evaluate("(one) => getComputedStyle(one).boxShadow") == "none"


WORDS = ["the", "cat", "sat", "on", "the", "mat", "and", "slept"]
