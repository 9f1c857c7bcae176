"""Records in notebooks: what the file of an executed notebook holds, and what a browser makes of it."""

from __future__ import annotations

import base64
import io
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from PIL import Image

import headwise
from headwise import masks
from headwise.extras import install
from headwise.records import AttentionRecord, Seen
from headwise.viewer import facts, notebook, picture
from headwise.viewer.inputs import inputs_of

from .conftest import HOSTILE, Elements, tokens

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

WIDGET = "application/vnd.jupyter.widget-view+json"

# The first cell of the notebook. It is run here as well, for the same numbers.
MAKE = f"""
import sys
import torch
import headwise
from headwise import Seen, masks

def make(**options):
    q, k = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    return headwise.attention(q, k, k, record=True, **options)[1]

torch.manual_seed(0)
record, causal = make(), make(mask=masks.causal())
seen = Seen([make(), make()])
seen.tokens = [{HOSTILE!r}]
changed = make()
before = changed.q.mul_(2)
"""

# Pages open on the first head, as in the other tests (conftest.py).
PLAIN = "from headwise.viewer import facts; facts.find_pairs = lambda stacks: [[] for _ in stacks]"

CELLS = {
    "make": MAKE,
    "plain": PLAIN,
    "record": "record",
    "causal": "causal",
    "seen": "seen",
    "changed": "changed",
    "empty": "Seen()",
    "printed": "print(record)",
    "without": 'sys.modules["anywidget"] = None  # as if it were not installed',
    "record without": "record",
    "seen without": "seen",
}


@dataclass
class Executed:
    """A notebook, read from its file after its cells were run."""

    outputs: dict[str, dict[str, Any]]  # of the cells that have one: the data by MIME type
    widgets: dict[str, dict[str, Any]]  # by id, as a notebook saves them

    def widget(self, cell: str) -> dict[str, Any]:
        """The traits of the widget that a cell shows."""
        saved = self.widgets[self.outputs[cell][WIDGET]["model_id"]]
        assert (saved["model_module"], saved["model_name"]) == ("anywidget", "AnyModel")
        (buffer,) = saved["buffers"]  # the blocks, and nothing else, travel as bytes
        assert (buffer["path"], buffer["encoding"]) == (["blocks"], "base64")
        return {**saved["state"], "blocks": base64.b64decode(buffer["data"])}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    folder = tmp_path_factory.mktemp("notebook")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name.lower()))
        NotebookClient(
            book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        ).execute()
    nbformat.write(book, folder / "book.ipynb")  # which checks it too
    saved = json.loads((folder / "book.ipynb").read_text(encoding="utf-8"))
    outputs = {}
    for name, cell in zip(CELLS, saved["cells"], strict=True):
        for output in cell["outputs"]:
            assert name not in outputs, f"{name}: expected one output, received {cell['outputs']}"
            data = output["data"] if output["output_type"] == "execute_result" else {"printed": output["text"]}
            outputs[name] = {kind: "".join(text) if isinstance(text, list) else text for kind, text in data.items()}
    return Executed(outputs, saved["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"])


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """The names of the first cell."""
    names: dict[str, Any] = {}
    exec(MAKE, names)
    return names


def pixels_of(uri: str) -> np.ndarray:
    kind, _, data = uri.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def still(source: str) -> tuple[np.ndarray, str]:
    """The pixels of the picture in some HTML, and what it says."""
    html = Elements(source)
    assert html.names <= {"p", "img", "code"}
    image = html.only("img")
    pixels = pixels_of(str(image["src"]))
    assert pixels.shape == (int(image["height"] or 0), int(image["width"] or 0), 3)
    assert image["alt"]
    assert image["alt"] in html.text
    return pixels, html.text


# ---- the file


@pytest.mark.parametrize("cell", ["record", "causal", "seen"])
def test_a_record_is_a_widget_beside_a_picture_and_its_repr(
    cell: str, executed: Executed, here: dict[str, Any]
) -> None:
    output = executed.outputs[cell]
    assert set(output) == {WIDGET, "text/html", "text/plain"}
    assert output["text/plain"] == repr(here[cell])
    pixels, text = still(output["text/html"])
    assert "headwise.view" in text
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 5
    assert len(output["text/html"]) < 200_000


def test_a_widget_has_all_that_the_page_needs(executed: Executed, here: dict[str, Any]) -> None:
    traits = executed.widget("seen")
    assert set(traits) >= {"_esm", "facts", "places", "blocks"}
    axes = json.loads(traits["facts"])["axes"]
    assert axes[0]["labels"] == list(here["seen"].tokens[0].labels)
    ends = sorted(traits["places"].values())
    assert ends[0][0] == 0
    assert ends[-1][1] == len(traits["blocks"])
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))


@pytest.mark.parametrize("cell", ["record", "seen"])
def test_without_anywidget_the_page_stands_in_a_frame(cell: str, executed: Executed, here: dict[str, Any]) -> None:
    output = executed.outputs[f"{cell} without"]
    assert set(output) == {"text/html", "text/plain"}
    assert output["text/plain"] == repr(here[cell])
    html = Elements(output["text/html"])
    assert html.names == {"iframe"}  # whatever stands in the labels
    frame = html.only("iframe")
    assert frame["title"]
    assert set(str(frame["sandbox"]).split()) == {"allow-scripts", "allow-downloads"}
    assert str(frame["srcdoc"]).startswith("<!doctype html>")
    assert str(frame["srcdoc"]).rstrip().endswith("</html>")

    assert executed.outputs["printed"] == {"printed": f"{here['record']!r}\n"}


def test_what_cannot_be_shown_is_a_sentence(executed: Executed) -> None:
    output = executed.outputs["changed"]
    assert "was changed in place" in output["text/plain"]
    assert Elements(output["text/html"]).text == output["text/plain"]
    assert executed.outputs["empty"]["text/plain"] == "Seen(empty: no attention was seen)"
    assert "no attention was seen" in executed.outputs["empty"]["text/html"]


# ---- the bundle


@dataclass
class Kernel:
    """An IPython with a kernel."""

    kernel: object = field(default_factory=object)


def small(length: int = 9, **options: Any) -> AttentionRecord:
    q, k = torch.randn(1, 2, length, 4), torch.randn(1, 2, length, 4)
    return headwise.attention(q, k, k, record=True, **options)[1]


def bundle(shown: AttentionRecord | Seen) -> dict[str, Any]:
    """What it shows where nobody says that widgets are understood."""
    found, metadata = shown._repr_mimebundle_()
    assert metadata == {}
    return found


def test_a_terminal_gets_text_and_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_shell", object)
    monkeypatch.setattr(notebook, "inputs_of", None)
    record = small()
    assert bundle(record) == {"text/plain": repr(record)}


@pytest.mark.parametrize("limit", [1000, 3000], ids=["told by its shape", "found on the way"])
def test_what_is_too_large_is_a_picture(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_shell", Kernel)
    monkeypatch.setattr(notebook, "WIDGET_BYTES", limit)
    record = small(length=64, bias=torch.randn(64, 64))  # 1.5 kB of q and k at least, 16 kB of bias
    found = bundle(record)
    assert set(found) == {"text/plain", "text/html"}
    text = still(found["text/html"])[1]
    assert 'headwise.Seen([record]).save("run.hw")' in text
    assert "headwise view run.hw --serve" in text
    assert ' seen.save("run.hw")' in still(bundle(Seen([record, record]))["text/html"])[1]

    # What is too large for a frame is a picture.
    monkeypatch.undo()
    monkeypatch.setattr(notebook, "FRAME_BYTES", 100)
    text = still(bundle(small())["text/html"])[1]
    assert install("notebook") in text
    assert 'headwise.view(record, "page.html")' in text
    monkeypatch.setattr(notebook, "WIDGET_BYTES", 100)  # which would not help either
    assert "headwise view run.hw --serve" in still(bundle(small())["text/html"])[1]


def test_a_record_that_the_page_refuses_is_a_sentence() -> None:
    q = torch.randn(1, 2, 9, 4)
    q[0, 0, 0, 0] = torch.nan
    record = headwise.attention(q, q, q, record=True)[1]
    found = bundle(record)
    assert found["text/plain"] == repr(record)
    assert "NaN" in Elements(found["text/html"]).text


def test_half_a_character_reaches_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen([small(length=2)])
    seen.tokens = [tokens(["a\ud800", "b"])]
    for limit in (1e6, 0):
        monkeypatch.setattr(notebook, "FRAME_BYTES", limit)
        assert json.dumps(bundle(seen), ensure_ascii=False).encode("utf-8")


def test_what_changed_is_another_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_shell", Kernel)
    seen = Seen([small(length=2)])

    def shown() -> str:
        return str(seen._repr_mimebundle_()[0][WIDGET]["model_id"])

    first = shown()
    assert shown() == first
    seen.tokens = [["a", "b"]]
    second = shown()
    assert second != first
    notebook._shown[seen].close()  # the notebook took it away
    assert shown() not in (first, second)


def test_statistics_that_would_take_long_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_shell", Kernel)
    monkeypatch.setattr(notebook, "ESTIMATED_ROWS", 4)

    def told(seen: Seen) -> dict[str, Any]:
        seen._repr_mimebundle_()
        (layer,) = json.loads(notebook._shown[seen].facts)["inputs"][0]["stacks"][0]["layers"]
        return dict(layer["stats"])

    record = small(length=64)
    assert "estimated" not in told(Seen([record]))
    monkeypatch.setattr(facts, "QUICK_CELLS", 100)
    stats = told(Seen([record]))
    assert stats["estimated"] == 4
    assert stats["entropy"] == pytest.approx(record.entropy().mean(2)[0].tolist(), rel=0.2)


def test_the_picture_has_a_map_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = small(length=picture.SIDES[1], mask=masks.causal()), small(length=5)
    found = picture.overview(inputs_of(Seen([first]))[0])
    side, gap = picture.SIDES[1], picture.GAP
    assert (found.width, found.height) == (2 * side + gap, side)
    pixels = pixels_of(found.uri)
    forbidden = (first.scores(heads=0) == -torch.inf)[0, 0].numpy()
    for head in range(2):
        drawn = pixels[:, head * (side + gap) :][:, :side].astype(int)
        assert (drawn[forbidden] == picture.MASKED).all()
        weights = first.weights(heads=head)[0, 0].numpy()
        darkest = np.unravel_index(drawn.sum(axis=2).argmin(), weights.shape)
        assert weights[darkest] > 0.9 * weights.max()
        assert np.corrcoef(drawn.sum(axis=2)[~forbidden], np.sqrt(weights[~forbidden]))[0, 1] < -0.95
    two = picture.overview(inputs_of(Seen([second, small(length=5)]))[0])
    assert (two.width, two.height) == (2 * side + gap, 2 * side + gap)
    monkeypatch.setattr(picture, "CELLS", 1)  # of long inputs a few rows are enough
    pixels = pixels_of(picture.overview(inputs_of(first)[0]).uri)
    assert len(np.unique(pixels[:, :side].reshape(side, -1), axis=0)) == 4


# ---- the browser


OUTSIDE = """<!doctype html><meta charset="utf-8"><title>A notebook</title>
<meta http-equiv="Content-Security-Policy" content="worker-src {workers}">
<body style="width: 700px; background: {paper}">"""

# What anywidget does: it imports the module, and renders a model whose bytes are a DataView on a part of a message.
RENDER = """async ([traits, bytes, id]) => {
    const url = URL.createObjectURL(new Blob([traits._esm], { type: "text/javascript" }));
    const { default: widget } = await import(url);
    const message = Uint8Array.from(`abc${atob(bytes)}de`, (letter) => letter.charCodeAt(0));
    const values = { ...traits, blocks: new DataView(message.buffer, 3, message.length - 5) };
    const model = { get: (name) => values[name], on() {}, off() {}, send() {} };
    const el = document.createElement("div");
    el.id = id;
    window.closing ??= {};
    window.closing[id] = await widget.render({ model, el });
    window.waiting = el;
}"""


def outside(tab: Page, folder: Path, body: str = "", *, paper: str = "white", workers: str = "blob:") -> None:
    """A document with nothing of the page's own, as a notebook is."""
    tab.set_viewport_size({"width": 720, "height": 1400})
    path = folder / "notebook.html"
    path.write_text(OUTSIDE.format(paper=paper, workers=workers) + body, encoding="utf-8")
    tab.goto(path.as_uri())


def show(tab: Page, executed: Executed, cell: str, id: str = "one") -> Locator:
    """A widget, put into the document."""
    traits = executed.widget(cell)
    blocks = base64.b64encode(traits.pop("blocks")).decode()
    tab.evaluate(RENDER, [traits, blocks, id])
    tab.evaluate("() => document.body.append(window.waiting)")
    return tab.locator(f"#{id}")


def go(tab: Page, at: Locator, keys: str, row: int, col: int) -> str:
    """Press keys until a cell is in question; its weight as it is printed."""
    at.locator("[role=tabpanel]").focus()
    for key in keys.split():
        tab.keyboard.press(key)
    at.locator(f"#cell[data-cell='{row},{col}']").wait_for()
    return at.locator("#cell b").inner_text()


def wait_for_workers(tab: Page, count: int) -> None:
    """Until so many are running: they end some time after they are told to."""
    for _ in range(100):
        if len(tab.workers) == count:
            return
        tab.wait_for_timeout(50)
    pytest.fail(f"expected {count} workers, received {tab.workers}")


def weight(at: Locator) -> float:
    return float(at.locator("#cell").get_attribute("data-weight") or "nan")


@pytest.mark.browser
def test_two_widgets_show_their_own_weights(
    executed: Executed, here: dict[str, Any], tab: Page, tmp_path: Path
) -> None:
    outside(tab, tmp_path)
    one = show(tab, executed, "record")
    two = show(tab, executed, "causal", "two")
    go(tab, one, "ArrowDown ArrowDown ArrowRight", 1, 1)
    assert weight(one) == pytest.approx(here["record"].weights(1, 1, 0).item(), abs=1e-4)
    assert two.locator("#cell[data-cell]").count() == 0  # the keys were the other's
    assert go(tab, two, "ArrowDown ArrowRight . .", 0, 1) == "masked"
    go(tab, two, "ArrowDown ArrowDown .", 2, 1)
    assert weight(two) == pytest.approx(here["causal"].weights(2, 1, 1).item(), abs=1e-4)
    assert one.locator("#cell[data-cell='1,1']").count() == 1
    assert weight(one) == pytest.approx(here["record"].weights(1, 1, 0).item(), abs=1e-4)
    for at in (one, two):
        box = at.bounding_box()
        assert box["width"] <= 700
        assert 400 < box["height"] <= 700

    # A widget that goes away leaves nothing.
    outside(tab, tmp_path)
    for id in ("one", "two"):
        at = show(tab, executed, "record", id)
        go(tab, at, "ArrowDown", 0, 0)
    assert len(tab.workers) == 2
    tab.evaluate("() => window.closing.one()")
    wait_for_workers(tab, 1)
    assert tab.locator("#one").evaluate("(el) => el.childElementCount") == 0
    go(tab, tab.locator("#two"), "ArrowDown ArrowDown", 2, 0)
    assert weight(tab.locator("#two")) == pytest.approx(here["record"].weights(2, 0, 0).item(), abs=1e-4)
    tab.set_viewport_size({"width": 500, "height": 900})  # whoever still listened would fail now
    tab.emulate_media(color_scheme="dark")
    tab.evaluate("() => window.closing.two()")
    wait_for_workers(tab, 0)


@pytest.mark.browser
def test_widgets_without_workers_and_out_of_sight(
    executed: Executed, here: dict[str, Any], tab: Page, tmp_path: Path
) -> None:
    outside(tab, tmp_path)
    tab.evaluate("() => delete self.Worker")
    at = show(tab, executed, "causal")
    go(tab, at, "ArrowDown ArrowDown", 1, 0)
    assert weight(at) == pytest.approx(here["causal"].weights(1, 0, 0).item(), abs=1e-4)
    tab.evaluate("() => window.closing.one()")
    assert at.evaluate("(el) => el.childElementCount") == 0

    # A widget begins when it comes into sight and its labels are only text.
    outside(tab, tmp_path, '<div style="height: 5000px"></div>')
    at = show(tab, executed, "record")
    tab.wait_for_timeout(100)
    assert tab.workers == []
    at.scroll_into_view_if_needed()
    go(tab, at, "ArrowDown", 0, 0)
    assert len(tab.workers) == 1
    # A notebook takes what is far out of sight out of the document for a while.
    tab.evaluate("() => { window.waiting.remove(); }")
    tab.wait_for_timeout(100)
    tab.evaluate("() => document.body.append(window.waiting)")
    go(tab, at, "ArrowDown", 1, 0)

    # Hostile labels in a widget are only text.
    outside(tab, tmp_path)
    at = show(tab, executed, "seen")
    go(tab, at, "ArrowDown ArrowRight", 0, 1)
    assert at.locator("#cell bdi").all_text_contents() == HOSTILE[:2]
    assert tab.locator("img, script, iframe").count() == 0


@pytest.mark.browser
@pytest.mark.parametrize(("paper", "theme"), [("white", "light"), ("#111", "dark"), ("transparent", "dark")])
def test_a_widget_is_as_dark_as_the_notebook(
    paper: str, theme: str, executed: Executed, tab: Page, tmp_path: Path
) -> None:
    tab.emulate_media(color_scheme="dark" if paper == "transparent" else "light")
    outside(tab, tmp_path, paper=paper)
    at = show(tab, executed, "record")
    at.locator("[role=tabpanel]").wait_for()
    assert at.locator("[data-theme]").first.get_attribute("data-theme") == theme


@pytest.mark.browser
@pytest.mark.parametrize("way", ["worker", "forbidden"])
def test_the_frame_shows_the_weights_of_the_record(
    way: str, executed: Executed, here: dict[str, Any], tab: Page, tmp_path: Path, trouble: list[str]
) -> None:
    frames = executed.outputs["record without"]["text/html"], executed.outputs["seen without"]["text/html"]
    outside(tab, tmp_path, "\n".join(frames), workers="'none'" if way == "forbidden" else "blob:")
    for number, (record, cell) in enumerate([(here["record"], (2, 1)), (here["seen"].records[0], (1, 0))]):
        frame = tab.frame_locator("iframe").nth(number).locator("body")
        frame.locator("[role=tabpanel]").wait_for()
        go(tab, frame, " ".join(["ArrowDown"] * (1 + cell[0]) + ["ArrowRight"] * cell[1]), *cell)
        assert weight(frame) == pytest.approx(record.weights(*cell, 0).item(), abs=1e-4)
    assert frame.locator("#cell bdi").all_text_contents() == [HOSTILE[1], HOSTILE[0]]
    assert len(tab.workers) == (2 if way == "worker" else 0)
    if way == "forbidden":
        assert trouble
        assert all("Content Security Policy" in line for line in trouble)
        trouble.clear()
