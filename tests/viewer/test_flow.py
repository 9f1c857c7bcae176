"""The Flow view in a real browser: what it says of rollout and relevance is what headwise.analyses says."""

from __future__ import annotations

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

from .browser import open_page, saved_svg, texts_in
from .conftest import empty_row, look, placed, record
from .test_modules import layer_by_layer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


def show(tab: Page, folder: Path, seen: Seen, **state: Any) -> None:
    """Open the Flow view."""
    open_page(tab, folder, seen, "&".join(f"{name}={value}" for name, value in {"view": "flow", **state}.items()))
    wait(tab)


def wait(tab: Page) -> None:
    """Until the flow is computed to its end, and drawn."""
    tab.wait_for_function("() => headwise.app.view?.flow?.part === 1 && !headwise.app.view.drawing")


def found(tab: Page) -> np.ndarray:
    """What the view has of each layer, from the top down to the input."""
    return np.array(tab.evaluate("() => headwise.app.view.flow.found.map((row) => Array.from(row))"))


def test_every_layer_of_a_rollout_is_that_of_python(tab: Page, tmp_path: Path, chromium: Browser) -> None:
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

    # The last token that is asked for is shown.
    seen = look(*(record(length=900, dim=2) for _ in range(3)))
    show(tab, tmp_path, seen)
    tab.evaluate("() => { for (const pinRow of [5, 6, 7]) headwise.state.set({ pinRow }); }")
    tab.wait_for_function("() => headwise.app.view.flow.token === 7 && headwise.app.view.flow.part === 1")
    tab.wait_for_timeout(200)
    assert tab.evaluate("headwise.app.view.flow.token") == 7
    np.testing.assert_allclose(found(tab)[-1], analyses.rollout(seen, rows=7)[0, 0], rtol=0, atol=1e-4)

    # The server gives the same.
    seen = look(empty_row(), record(sinks=torch.tensor([0.5, 3.0])), record())
    with serving(inputs_of(seen), title="A page") as address:
        context = chromium.new_context()
        other = context.new_page()
        other.goto(f"{address}#view=flow&pinrow=4")
        wait(other)
        np.testing.assert_allclose(found(other), layer_by_layer(seen, 4), rtol=0, atol=1e-6)
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


def test_the_text_is_shaded_by_the_largest_shares_or_the_layer_pointed_at(tab: Page, tmp_path: Path) -> None:
    seen = look(*(record(length=12, size=2.0) for _ in range(2)))
    show(tab, tmp_path, seen, pinrow=4)
    shares = analyses.rollout(seen, rows=4)[0, 0]
    order = shares.argsort(descending=True).tolist()
    assert listed(tab) == [(i, pytest.approx(shares[i].item(), abs=1e-4)) for i in order[:8]]
    rest = shares[order[8:]].sum().item()
    assert f"all other tokens together {rest:.3g}"[:-1] in tab.locator(".view-flow .largest").inner_text()
    grounds = tab.locator(".view-flow .token").evaluate_all("(all) => all.map((each) => each.style.backgroundColor)")
    assert len({grounds[i] for i in order if i != 4}) > 6

    # Pointing at a layer reads it and shades the text by it.
    seen = look(*(record() for _ in range(3)))
    show(tab, tmp_path, seen, pinrow=2)
    expected = layer_by_layer(seen, 2)
    place = tab.locator(".view-flow .layers canvas").bounding_box()
    frame = tab.evaluate("headwise.app.view.frame")
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


def test_keys_walk_over_layers_and_tokens_and_the_sink_is_hidden(tab: Page, tmp_path: Path) -> None:
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
    saved = texts_in(saved_svg(tab))
    assert {"after layer 1", "after layer 0", "input", "w8"} <= {*saved}
    assert any(text.startswith("rollout of w4 4 ") for text in saved)

    # Hiding the sink hides special tokens and changes no value.
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


def test_what_cannot_be_followed_says_why(tab: Page, tmp_path: Path) -> None:
    for length, kind, said in ((4, "cross", "Choose another stack"), (2, "self", "2 rows and 7 columns")):
        open_page(tab, tmp_path, Seen([placed(record(length=length, keys=7), "layers.0", kind=kind)]), "view=flow")
        assert said in tab.get_by_role("tabpanel").inner_text()
