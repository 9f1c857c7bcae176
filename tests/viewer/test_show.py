"""`headwise.show` and `headwise.view` in a notebook: what is in the output, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import ArgumentError, DtypeError, RecordError, ShapeError
from headwise.records import Seen
from headwise.viewer import notebook
from headwise.viewer.show import MOST, make_record

from .conftest import look, record
from .test_notebook import WIDGET, Kernel

if TYPE_CHECKING:
    from playwright.sync_api import Page

WORDS = ["the", "cat", "sat", "on", "it", "so", "it", "ran", "off"]


@pytest.fixture
def in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_shell", Kernel)


@pytest.fixture
def seen() -> Seen:
    found = look(record(heads=4), record(heads=4), record(heads=4))
    found.tokens = [WORDS]
    return found


def facts_of(shown: Any) -> dict[str, Any]:
    """What the widget of an output is told."""
    found, _ = shown._repr_mimebundle_()
    assert set(found) == {WIDGET, "text/html", "text/plain"}  # VS Code and GitHub take the second
    assert json.dumps(found)
    assert found["text/html"].count("<img") == 1
    return json.loads(notebook._shown[shown].facts)


# ---- view


@pytest.mark.usefixtures("in_a_notebook")
def test_in_a_notebook_the_page_is_shown_and_nothing_is_written(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = headwise.view(seen, title="Mine", generated=5)
    facts = facts_of(shown)
    assert facts["small"] is None
    assert (facts["title"], facts["axes"][0]["generated"]) == ("Mine", 5)
    assert len(facts["inputs"][0]["stacks"][0]["layers"]) == 3
    assert repr(shown) == "<page of 'Mine', displayed in a notebook; headwise.view(…, \"page.html\") writes a file>"
    assert [each["name"] for each in facts_of(headwise.view({"a": seen, "b": seen}))["inputs"]] == ["a", "b"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DtypeError, match="expected a Seen"):  # at once, not when it is displayed
        headwise.view("run.hw")  # type: ignore[arg-type]


@pytest.mark.usefixtures("in_a_notebook")
def test_in_a_notebook_a_file_is_written_where_it_is_named(seen: Seen, tmp_path: Path) -> None:
    assert headwise.view(seen, tmp_path / "page.html") == tmp_path / "page.html"
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_elsewhere_the_file_without_a_name_is_told(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = headwise.view(seen)
    assert isinstance(path, Path)
    assert capsys.readouterr().err == "headwise: wrote attention.html: open it in a browser; it needs no network\n"
    headwise.view(seen, "other.html")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(notebook, "_shell", object)  # IPython in a terminal
    assert headwise.view(seen) == path


# ---- show


@pytest.mark.usefixtures("in_a_notebook")
def test_some_heads_of_a_layer(seen: Seen) -> None:
    facts = facts_of(headwise.show(seen, layer=2, heads=[3, 0], row="ran"))
    assert facts["small"] == {"kind": "map", "heads": [3, 0], "row": 7, "unnamed": False}
    (layer,) = facts["inputs"][0]["stacks"][0]["layers"]
    assert (layer["number"], layer["heads"]) == (2, 4)
    assert facts["axes"][0]["labels"] == WORDS
    facts = facts_of(headwise.show(seen[1], heads=-1, kind="lines", tokens=list("abcdefghi"), row="b"))
    assert facts["small"] == {"kind": "lines", "heads": [3], "row": 1, "unnamed": True}
    assert facts["axes"][0]["labels"] == list("abcdefghi")
    assert facts_of(headwise.show(Seen([seen[0]])))["small"]["heads"] == [0, 1, 2, 3]


@pytest.mark.usefixtures("in_a_notebook")
def test_one_example_of_a_batch(seen: Seen) -> None:
    batch = look(record(batch=2))
    batch.tokens = [WORDS, WORDS[::-1]]
    facts = facts_of(headwise.show(batch, example=1, row="the"))
    assert facts["small"]["row"] == 8
    assert len(facts["inputs"]) == 1
    assert facts["axes"][0]["labels"] == WORDS[::-1]


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32", "float64"])
def test_plain_weights_are_those_of_their_record(kind: str) -> None:
    given = record(heads=3, mask=masks.causal()).weights()[0].to(getattr(torch, kind))
    found = make_record(given)
    off = 1e-6 if given.dtype.itemsize > 2 else 1e-2  # rows of rounded weights do not sum to 1
    torch.testing.assert_close(found.weights()[0], given.float(), atol=off, rtol=0)
    assert bool((found.weights()[0][given == 0] == 0).all())
    assert make_record(given[0]).shape == (1, 1, 9, 9)
    assert make_record(given[None].detach().numpy() if kind.startswith("float") else given[None]).shape == (1, 3, 9, 9)


def test_a_query_that_attends_to_nothing_stays_so() -> None:
    weights = torch.tensor([[0.25, 0.75], [0.0, 0.0]])
    found = make_record(weights)
    torch.testing.assert_close(found.weights()[0, 0], weights)
    assert found.lse[0, 0, 1] == -torch.inf


@pytest.mark.usefixtures("in_a_notebook")
def test_one_layer_of_what_a_model_returns() -> None:
    attentions = tuple(record(heads=2).weights() for _ in range(3))
    facts = facts_of(headwise.show(attentions, layer=1, tokens=WORDS))
    assert facts["small"]["unnamed"]
    cross = record(length=9, keys=4).weights()[0]
    facts = facts_of(headwise.show(cross, tokens={"target": WORDS, "source": list("wxyz")}))
    assert [axis["labels"] for axis in facts["axes"]] == [WORDS, list("wxyz")]


ROW = torch.full((1, 2, 2), 0.5)
PIE: Any = "pie"

REFUSED = {
    "a kind": (lambda seen: headwise.show(seen, kind=PIE), ArgumentError, 'kind must be "map" or "lines"'),
    "no layer": (lambda seen: headwise.show(seen), ArgumentError, "layer: choose one of the 3 layers"),
    "a layer that is not there": (lambda seen: headwise.show(seen, layer=3), RecordError, "0 … 2"),
    "a layer of a record": (lambda seen: headwise.show(seen[0], layer=0), ArgumentError, "is one layer already"),
    "a head": (lambda seen: headwise.show(seen[0], heads=4), ArgumentError, "heads must lie in 0 … 3"),
    "no heads": (lambda seen: headwise.show(seen[0], heads=[]), ArgumentError, f"1 to {MOST} heads. Received: 0"),
    "many heads": (lambda seen: headwise.show(record(heads=17)), ArgumentError, "Received: 17. Choose some"),
    "an example": (lambda seen: headwise.show(seen[0], example=1), ArgumentError, "example must lie in 0 … 0"),
    "a row": (lambda seen: headwise.show(seen, layer=0, row="it"), ArgumentError, "row: 'it' occurs at 4 and 6"),
    "tokens": (lambda seen: headwise.show(ROW, tokens=["a"]), RecordError, "Q = 2"),
    "scores": (lambda seen: headwise.show(ROW - 1), ArgumentError, "are these scores?"),
    "sums": (lambda seen: headwise.show(ROW * 1.5), ArgumentError, "row 0 of head 0 of example 0 sums to 1.5"),
    "NaN": (lambda seen: headwise.show(ROW * torch.nan), ArgumentError, "negative ones or NaN"),
    "a vector": (lambda seen: headwise.show(ROW[0, 0]), ShapeError, "Received: [2]"),
    "integers": (lambda seen: headwise.show(np.eye(3, dtype=int)), DtypeError, "weights: a tensor of floats"),
    "a path": (lambda seen: headwise.show("run.hw"), DtypeError, "expected a Seen, a record, or weights"),
    "a list without a layer": (lambda seen: headwise.show([ROW]), ArgumentError, "layer: expected a number, 0 … 0"),
    "nothing": (lambda seen: headwise.show(Seen()), RecordError, "no attention was seen"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_one_line(case: str, seen: Seen) -> None:
    show, error, message = REFUSED[case]
    with pytest.raises(error) as caught:
        show(seen)
    assert message in str(caught.value)


@pytest.mark.browser
def test_maps_in_a_frame_show_the_weights(seen: Seen, tab: Page, tmp_path: Path) -> None:
    weights = seen[1].weights()[0]
    html = headwise.show(weights, heads=[2, 0], tokens=WORDS, row="ran")._repr_mimebundle_()[0]["text/html"]
    (tmp_path / "book.html").write_text(f'<meta charset="utf-8"><body style="width: 800px">{html}', encoding="utf-8")
    tab.set_viewport_size({"width": 900, "height": 700})
    tab.goto((tmp_path / "book.html").as_uri())
    frame = tab.frame_locator("iframe").locator("body")
    assert frame.locator("figcaption").all_text_contents() == ["head 2", "head 0"]
    assert frame.locator("[role=tab], header").count() == 0
    cell = frame.locator("#cell[data-cell]")
    for place, head in ((1, 0), (0, 2)):
        box = frame.locator("figure canvas").nth(place).bounding_box()
        tab.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.8 * box["height"])
        frame.locator("#cell .place", has_text=f"head {head}").wait_for()
        cell.wait_for()
        row, col = map(int, str(cell.get_attribute("data-cell")).split(","))
        assert float(str(cell.get_attribute("data-weight"))) == pytest.approx(float(weights[head, row, col]), abs=1e-4)
    tab.keyboard.press("1")  # there are no other views
    assert frame.locator("figure").count() == 2
    assert frame.evaluate("(body) => body.ownerDocument.documentElement.scrollHeight <= innerHeight + 40")
