"""The Flow view in a real browser: what it says of rollout and relevance is what headwise.analyses says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise import analyses, masks
from headwise.records import Seen
from headwise.viewer import inputs_of
from headwise.viewer.server import serving

from .conftest import HOSTILE, empty_row, look, placed, record, write
from .test_modules import layer_by_layer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


def show(tab: Page, folder: Path, seen: Seen, **state: Any) -> None:
    """Open the Flow view."""
    write(folder / "page.html", seen)
    said = "&".join(f"{name}={value}" for name, value in {"view": "flow", **state}.items())
    tab.goto(f"{(folder / 'page.html').as_uri()}#{said}")
    wait(tab)


def wait(tab: Page) -> None:
    """Until the flow is computed to its end, and drawn."""
    tab.wait_for_function("() => headwise.app.view?.flow?.part === 1 && !headwise.app.view.drawing")


def found(tab: Page) -> np.ndarray:
    """What the view has of each layer, from the top down to the input."""
    return np.array(tab.evaluate("() => headwise.app.view.flow.found.map((row) => Array.from(row))"))


def test_every_layer_of_a_rollout_is_that_of_python(tab: Page, tmp_path: Path) -> None:
    """In a worker; test_modules.py has more kinds of records."""
    seen = look(*(record(batch=2, mask=masks.causal()) for _ in range(3)))
    show(tab, tmp_path, seen)
    assert tab.evaluate("headwise.app.view.flow.token") == 8  # the token that has seen the most
    assert tab.get_by_role("heading", name="What w8 8 is made of").is_visible()
    np.testing.assert_allclose(found(tab), layer_by_layer(seen, 8), rtol=0, atol=1e-4)
    tab.evaluate("() => headwise.app.go({ input: 1, pinRow: 4 })")
    wait(tab)
    np.testing.assert_allclose(found(tab), layer_by_layer(seen, 4, example=1), rtol=0, atol=1e-4)
    button = tab.get_by_role("button", name="relevance")
    assert button.is_disabled()
    assert "gradients=True" in (button.get_attribute("title") or "")


def test_the_server_gives_the_same(chromium: Browser) -> None:
    seen = look(empty_row(), record(sinks=torch.tensor([0.5, 3.0])), record())
    with serving(inputs_of(seen), title="A page") as address:
        context = chromium.new_context()
        tab = context.new_page()
        tab.goto(f"{address}#view=flow&pinrow=4")
        wait(tab)
        np.testing.assert_allclose(found(tab), layer_by_layer(seen, 4), rtol=0, atol=1e-6)
        context.close()


class Reads(nn.Module):
    """Two layers of attention and a score of the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x[:, 2].sum()


def with_gradients() -> Seen:
    model, x = Reads(), torch.randn(1, 6, 8)
    with headwise.watch(model, values=True, gradients=True, tokens=[f"w{i}" for i in range(6)]) as seen:
        model(x).backward()
    return seen


def test_relevance_is_that_of_python(tab: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = with_gradients()
    show(tab, tmp_path, seen)

    def check_python() -> None:
        """That the Python of the view gives what it shows."""
        scope: dict[str, Any] = {"headwise": headwise, "seen": seen}
        exec(tab.evaluate("headwise.app.view.python()"), scope)
        shown = tab.evaluate("() => Array.from(headwise.app.view.valuesOf(headwise.app.view.count - 1))")
        np.testing.assert_allclose(shown, scope["found"].detach(), rtol=2e-3, atol=1e-4)
        assert capsys.readouterr().out.count("token") == 6

    check_python()
    tab.get_by_role("button", name="relevance").click()
    wait(tab)
    assert tab.evaluate("headwise.app.view.flow.kind") == "relevance"
    token = tab.evaluate("headwise.app.view.flow.token")
    expected = analyses.relevance(seen, rows=token)[0, 0]
    np.testing.assert_allclose(found(tab)[-1], expected.detach(), rtol=2e-3, atol=1e-6)
    # What is said leaves out the 1 that every token starts with.
    expected[token] -= 1
    order = expected.argsort(descending=True)[:3].tolist()
    assert listed(tab)[:3] == [(i, pytest.approx(expected[i].item(), rel=5e-3, abs=1e-4)) for i in order]
    check_python()
    tab.get_by_role("button", name="rollout").click()
    wait(tab)
    assert tab.evaluate("headwise.app.view.flow.kind") == "rollout"


def listed(tab: Page) -> list[tuple[int, float]]:
    """The list of the largest: tokens and their shares."""
    lines = tab.locator(".view-flow li button")
    return [
        (int(line.get_attribute("data-token") or -1), float(line.locator("b").inner_text())) for line in lines.all()
    ]


def test_the_largest_shares_are_listed_and_the_text_is_shaded_by_them(tab: Page, tmp_path: Path) -> None:
    seen = look(*(record(length=12, size=2.0) for _ in range(2)))
    show(tab, tmp_path, seen, pinrow=4)
    shares = analyses.rollout(seen, rows=4)[0, 0]
    order = shares.argsort(descending=True).tolist()
    assert listed(tab) == [(i, pytest.approx(shares[i].item(), abs=1e-4)) for i in order[:8]]
    rest = shares[order[8:]].sum().item()
    assert f"all other tokens together {rest:.3g}"[:-1] in tab.locator(".view-flow .largest").inner_text()
    dark = tab.evaluate(
        """() => [...headwise.app.root.querySelectorAll(".view-flow .token")].map((span) => {
            const [r, g, b] = span.style.backgroundColor.match(/\\d+/g)?.map(Number) ?? [255, 255, 255];
            return -(r + g + b);
        })"""
    )
    others = [i for i in order if i != 4]
    assert all(dark[a] >= dark[b] for a, b in itertools.pairwise(others))
    assert dark[others[0]] > dark[others[-1]]


def test_pointing_at_a_layer_reads_it_and_shades_the_text_by_it(tab: Page, tmp_path: Path) -> None:
    seen = look(*(record() for _ in range(3)))
    show(tab, tmp_path, seen, pinrow=2)
    expected = layer_by_layer(seen, 2)
    place = tab.locator(".view-flow .layers canvas").bounding_box()
    frame = tab.evaluate("headwise.app.view.frame")
    assert place is not None
    for row, col in [(1, 5), (3, 0), (2, 8)]:
        x = place["x"] + frame["left"] + (col + 0.5) * frame["wide"]
        y = place["y"] + frame["top"] + (row + 0.5) * frame["high"]
        tab.mouse.move(x, y)
        reading = tab.locator(".view-flow .reading")
        tab.wait_for_function(
            "(cell) => headwise.app.root.querySelector('.view-flow .reading').dataset.cell === cell", arg=f"{row},{col}"
        )
        assert float(reading.locator("b").inner_text()) == pytest.approx(expected[row, col].item(), abs=1e-4)
        where = "in the input" if row == 3 else f"after layer {2 - row}"
        assert reading.inner_text().endswith(f"w{col} {col} {where}")
        assert listed(tab)[0] == (expected[row].argmax().item(), pytest.approx(expected[row].max().item(), abs=1e-4))
    assert tab.evaluate("headwise.state.col") == 8
    tab.mouse.click(place["x"] + frame["left"] + 6.5 * frame["wide"], place["y"] + frame["top"] + 5)
    wait(tab)
    assert tab.evaluate("[headwise.state.pinRow, headwise.app.view.flow.token]") == [6, 6]


def test_keys_walk_over_layers_and_tokens_and_follow_one(tab: Page, tmp_path: Path) -> None:
    seen = look(*(record() for _ in range(2)))
    show(tab, tmp_path, seen, pinrow=3, col=3)
    for key, cell in [("ArrowRight", "2,4"), ("ArrowUp", "1,4"), ("ArrowUp", "0,4"), ("ArrowUp", "0,4")]:
        tab.keyboard.press(key)
        tab.wait_for_function(
            "(cell) => headwise.app.root.querySelector('.view-flow .reading').dataset.cell === cell", arg=cell
        )
    tab.keyboard.press("Enter")
    wait(tab)
    assert tab.evaluate("headwise.app.view.flow.token") == 4
    tab.keyboard.press("e")
    assert tab.get_by_role("button", name="one scale").get_attribute("aria-pressed") == "true"
    with tab.expect_download() as download:
        tab.get_by_role("button", name="SVG").click()
    saved = Path(download.value.path()).read_text("utf-8")
    for text in ["after layer 1<", "after layer 0<", ">input<", ">w8<", ">rollout of w4 4 "]:
        assert text in saved


def test_hiding_the_sink_hides_special_tokens_and_changes_no_value(tab: Page, tmp_path: Path) -> None:
    seen = look(*(record() for _ in range(2)))
    show(tab, tmp_path, seen, pinrow=4)
    before = found(tab)
    assert 0 in [token for token, _ in listed(tab)]
    tab.get_by_role("button", name="Hide the sink").click()
    tab.wait_for_function("() => !headwise.app.view.drawing")
    np.testing.assert_array_equal(found(tab), before)
    assert "values unchanged" in tab.locator(".view-flow .note").first.inner_text()
    assert 0 not in [token for token, _ in listed(tab)]
    assert tab.locator(".view-flow .token").first.evaluate("(span) => span.style.backgroundColor") == ""


def test_the_last_token_that_is_asked_for_is_shown(tab: Page, tmp_path: Path) -> None:
    seen = look(*(record(length=900, dim=2) for _ in range(3)))
    show(tab, tmp_path, seen)
    tab.evaluate("() => { for (const pinRow of [5, 6, 7]) headwise.state.set({ pinRow }); }")
    tab.wait_for_function("() => headwise.app.view.flow.token === 7 && headwise.app.view.flow.part === 1")
    tab.wait_for_timeout(200)
    assert tab.evaluate("headwise.app.view.flow.token") == 7
    np.testing.assert_allclose(found(tab)[-1], analyses.rollout(seen, rows=7)[0, 0], rtol=0, atol=1e-4)


def test_what_cannot_be_followed_says_why(tab: Page, tmp_path: Path) -> None:
    cross = placed(record(length=4, keys=7), "cross", kind="cross")
    write(tmp_path / "page.html", Seen([cross]))
    tab.goto(f"{(tmp_path / 'page.html').as_uri()}#view=flow")
    assert "Choose another stack" in tab.get_by_role("tabpanel").inner_text()
    cached = placed(record(length=2, keys=7), "layers.0")
    write(tmp_path / "cached.html", Seen([cached]))
    tab.goto(f"{(tmp_path / 'cached.html').as_uri()}#view=flow")
    assert "2 rows and 7 columns" in tab.get_by_role("tabpanel").inner_text()


def test_what_would_take_too_long_or_fails_says_so(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record(), record()))
    tab.evaluate(
        """() => {
            headwise.app.view.stack.mix = () => Promise.reject(new Error("The server does not answer."));
            headwise.state.set({ pinRow: 5 });
        }"""
    )
    tab.locator(".view-flow .note", has_text="The server does not answer.").wait_for()
    tab.evaluate(
        """() => {
            for (const layer of headwise.app.view.stack.layers) layer.heads = 1e9;
            headwise.state.set({ pinRow: 6 });
        }"""
    )
    tab.locator(".view-flow .note", has_text="In Python: headwise.analyses.rollout").wait_for()


def test_a_hostile_text_is_only_text(tab: Page, tmp_path: Path) -> None:
    show(tab, tmp_path, look(record(), record(), labels=HOSTILE), pinrow=0)
    assert tab.locator(".view-flow h2 bdi").text_content() == HOSTILE[0]
    assert [span.text_content() for span in tab.locator(".view-flow .token").all()] == HOSTILE
    assert tab.locator("img").count() == 0


def test_it_fits_a_narrow_window(tab: Page, tmp_path: Path) -> None:
    tab.set_viewport_size({"width": 400, "height": 800})
    show(tab, tmp_path, look(*(record(length=30) for _ in range(6))), pinrow=3, col=12)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert tab.evaluate("headwise.app.panel.scrollWidth <= headwise.app.panel.clientWidth")
    assert tab.locator(".view-flow .layers canvas").bounding_box()["width"] > 300  # type: ignore[index]
