"""A page that carries its model, in Chromium and Firefox, from a file, without a network, against the model in Python.

The sentences and the heads that are off are drawn anew in each run.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from headwise import cli, edit, edits, tasks
from headwise.models import Bert
from headwise.models.checkpoint import default_model
from headwise.records import AttentionRecord
from headwise.text import Tokenizer
from headwise.viewer.carried import choose_sentences
from tests.conftest import make_once, missing

from .browser import check_with_axe
from .conftest import Page
from .firefox import firefox
from .test_carried import in_python, pack_as_the_page, portable

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext
    from playwright.sync_api import Page as Tab

__all__ = ["portable"]  # a fixture

pytestmark = pytest.mark.browser
SEED = random.randrange(2**31)  # pytest prints it where a test fails
FIRST = "the cat sat"
WORDS = ["the", "cat", "sat", "on", "mat", "running", ".", "dog", "[SEP]"]
# What the page has of a text with edits, once it shows it.
ASK = """(async ([prompt, edits]) => {
    const { app, state } = headwise;
    const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);
    const isIt = ({ live }) => live.run !== null && live.prompt === prompt && isSame(live.edits, edits);
    state.set({ prompt, edits });
    while (app.live.running !== null || !isIt(app.source)) await new Promise((later) => setTimeout(later, 10));
    const { layers, rows: { labels, length: n } } = app.stack;
    const weights = [];
    for (const [layer, { heads }] of layers.entries()) {
        const every = Array.from({ length: heads }, (_, head) => head);
        const tileOf = (head) => app.stack.tile(layer, head, [0, n], [0, n], n, n, "max").then((tile) => [...tile]);
        weights.push(await Promise.all(every.map(tileOf)));
    }
    return { labels, weights, stats: layers.map(({ stats }) => stats), live: app.source.live };
})"""


@pytest.fixture(scope="session")
def minilm_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_once(
        tmp_path_factory, "minilm-page", lambda folder: view("A warm film.", "--out", str(folder / "page.html"))
    )
    return made / "page.html"


@pytest.fixture(scope="session")
def classifier_page(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the run folder "run"."""
    made = make_once(tmp_path_factory, "classifier-page", lambda folder: train_and_view(folder, tiny_bert))
    return made / "page.html"


def train_and_view(folder: Path, tiny_bert: Path) -> None:
    rows = {"text": ["the cat sat on the mat.", "running on the mat"] * 6, "label": ["sits", "runs"] * 6}
    tasks.Classify.fit(rows, model=str(tiny_bert), lr=1e-2, epochs=1, monitor_every=0, out=folder / "run")
    view(str(folder / "run"), FIRST, "--dtype", "float32", "--out", str(folder / "page.html"))


def view(*arguments: str) -> None:
    assert cli.main(["view", *arguments, "--with-model"]) == 0


@pytest.fixture(params=["chromium", pytest.param("firefox", marks=pytest.mark.slow)])
def evaluate(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Opens a page, and evaluates an expression there; at its end nothing was wrong on the console."""
    if request.param == "firefox":
        with firefox() as fox:
            if fox is None:
                missing("no Firefox here: scripts/install says how to get one")

            def in_firefox(expression: str, page: Path | None = None) -> Any:
                if page:
                    fox.open(page.as_uri())
                return fox.evaluate(expression)

            yield in_firefox
            assert fox.console == []
        return
    tab, trouble = request.getfixturevalue("context").new_page(), []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))

    def in_chromium(expression: str, page: Path | None = None) -> Any:
        if page:
            tab.goto(page.as_uri())
        return tab.evaluate(expression)

    yield in_chromium
    tab.close()
    assert trouble == []


def draw_heads(draw: random.Random, layers: int, heads: int) -> list[tuple[int, int]]:
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    return draw.sample(every, draw.randint(1, len(every) // 2))


def gates_of(off: list[tuple[int, int]], layers: int, heads: int) -> list[float] | None:
    return [float((i // heads, i % heads) not in off) for i in range(layers * heads)] if off else None


def ask(evaluate: Callable[..., Any], text: str, off: list[tuple[int, int]]) -> dict[str, Any]:
    edits_of = [{"kind": "ablate", "layer": layer, "heads": [head]} for layer, head in off]
    found: dict[str, Any] = evaluate(f"{ASK}({json.dumps([text, edits_of])})")
    return found


def told_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = found["live"]["predictions"]["tokens"]
    return told


def vector(hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(hidden.double().mean(0), dim=0)


@pytest.mark.usefixtures("portable")
def test_minilm_in_the_page_is_minilm_in_python(evaluate: Callable[..., Any], minilm_page: Path) -> None:
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    packed = pack_as_the_page(Bert.from_pretrained(default_model()), "int8")
    tokenizer = Tokenizer.from_pretrained(default_model())
    words = sorted(name for name in tokenizer.backend.get_vocab() if name.isalpha() and len(name) > 2)
    evaluate("null", minilm_page)
    sentences = choose_sentences(tokenizer)[1:]

    def hidden_of(text: str, gates: Any) -> tuple[torch.Tensor, Any]:
        ids = tokenizer.encode(text).ids
        return in_python(packed, {"ids": ids, "gates": gates})

    for off in ([], *(draw_heads(draw, 6, 12) for _ in range(3))):
        text = " ".join(draw.choices(words, k=draw.randint(3, 25))).capitalize() + "."
        found, gates = ask(evaluate, text, off), gates_of(off, 6, 12)
        assert found["labels"] == list(tokenizer.encode(text).labels)
        hidden, calls = hidden_of(text, gates)
        for layer, (weights, call) in enumerate(zip(found["weights"], calls, strict=True)):
            record = AttentionRecord(call)
            length = len(found["labels"])
            ours = np.array(weights, float).reshape(12, length, length)
            np.testing.assert_allclose(ours, record.weights()[0], rtol=0, atol=1e-5, err_msg=f"layer {layer}, {text}")
            entropy = record.entropy()[0].mean(-1)
            np.testing.assert_allclose(found["stats"][layer]["entropy"], entropy, rtol=1e-4, atol=1e-4)
        before = hidden if gates is None else hidden_of(text, None)[0]
        for told in told_of(found):
            sentence = sentences[told["id"]]
            assert told["text"] == sentence
            for name, (mine, how) in {"plain": (before, None), "edited": (hidden, gates)}.items():
                cosine = float(vector(mine) @ vector(hidden_of(sentence, how)[0]))
                assert told[name] == pytest.approx(cosine, abs=1e-5)
        shown = [each["edited"] for each in told_of(found)]
        assert shown == sorted(shown, reverse=True)
    loaded = evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
    assert [name for name in loaded if not name.startswith("blob:")] == []


def test_a_classifier_and_what_follows(evaluate: Callable[..., Any], classifier_page: Path) -> None:
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    task = tasks.load(classifier_page.parent / "run")
    evaluate("null", classifier_page)
    for off in ([], *(draw_heads(draw, 3, 2) for _ in range(3))):
        text = " ".join(draw.choices(WORDS, k=draw.randint(1, 20)))
        found = ask(evaluate, text, off)
        (plain,) = task.predict([text])
        cut = [edits.ablate(f"encoder.layers.{layer}.attention", heads=[head]) for layer, head in off]
        with edit(task.model, cut) if cut else contextlib.nullcontext():
            (edited,), (seen,) = task.predict([text]), task.look([text])
        assert found["labels"] == list(seen.tokens[0].labels)
        for layer, record in enumerate(seen.records):
            ours = np.array(found["weights"][layer], float).reshape(record.weights()[0].shape)
            np.testing.assert_allclose(ours, record.weights()[0], rtol=0, atol=1e-5, err_msg=f"layer {layer}, {text}")
        predictions = found["live"]["predictions"]
        assert sorted(each["text"] for each in predictions["tokens"]) == ["runs", "sits"]
        run, made = classifier_page.parent / "run", evaluate("headwise.app.source.made")  # what "Python" copies
        assert made == (None if off else f"headwise.tasks.load({json.dumps(str(run))}).look([{json.dumps(text)}])[0]")
        for told in predictions["tokens"]:
            for name, row in (("plain", plain), ("edited", edited)):
                assert told[name] == pytest.approx(row[f"probability of {told['text']}"], abs=1e-5)
        p, q = (np.array([each[name] for each in predictions["tokens"]]) for name in ("plain", "edited"))
        assert predictions["distance"] == pytest.approx(abs(p - q).sum() / 2)
        assert predictions["divergence"] == pytest.approx((p * np.log(p / q)).sum(), abs=1e-9)


def test_some_of_the_layers(context: BrowserContext, classifier_page: Path, tmp_path: Path) -> None:
    run, text = classifier_page.parent / "run", "the cat sat on the mat"
    view(str(run), FIRST, "--layers", "0,2", "--dtype", "float32", "--out", str(tmp_path / "page.html"))
    tab = context.new_page()
    tab.goto((tmp_path / "page.html").as_uri())
    found = ask(tab.evaluate, text, [(2, 1)])
    task = tasks.load(run)
    with edit(task.model, edits.ablate("encoder.layers.2.attention", heads=[1])):
        (seen,) = task.look([text])
    for weights, record in zip(found["weights"], [seen.records[0], seen.records[2]], strict=True):
        expected = record.weights()[0]
        np.testing.assert_allclose(np.array(weights).reshape(expected.shape), expected, rtol=0, atol=1e-5)
    assert tab.locator(".chip span").all_inner_texts() == ["layer 2 · head 1 off"]
    tab.close()


@pytest.fixture
def page(context: BrowserContext, classifier_page: Path) -> Iterator[Tab]:
    tab = context.new_page()
    tab.goto(classifier_page.as_uri())
    wait_for_run(tab, FIRST)
    yield tab
    tab.close()


def wait_for_run(tab: Tab, prompt: str) -> None:
    tab.wait_for_function(
        "(prompt) => window.headwise && headwise.app.live.running === null && headwise.app.source.live.run !== null "
        "&& headwise.app.source.live.prompt === prompt",
        arg=prompt,
    )


@pytest.mark.opening
def test_answers_while_one_types(page: Tab) -> None:
    field = page.locator("#prompt")
    assert field.input_value() == FIRST
    field.fill("")
    field.press_sequentially("the mat. The cat sat on the mat")
    wait_for_run(page, "the mat. The cat sat on the mat")
    labels = page.evaluate("headwise.app.stack.rows.labels")
    assert labels == ["[CLS]", "the", "mat", ".", "The", "cat", "sat", "on", "the", "mat", "[SEP]"]
    assert field.input_value() == "the mat. The cat sat on the mat"
    page.wait_for_function("() => headwise.app.stack.layers.every(({ supports }) => supports)")
    assert page.evaluate("headwise.app.stack.layers[0].supports.induction.queries") == [3, 3]  # the, the, mat
    assert page.evaluate("headwise.app.stack.layers[0].stats.induction.length") == 2
    page.evaluate("headwise.state.set({ view: 'text', level: 'sentences', row: 4 })")  # a text of two sentences
    assert page.evaluate("headwise.app.stack.rows.sentences.labels") == [
        *("[CLS]", "the mat.", "The cat sat on the mat", "[SEP]")
    ]
    page.evaluate("headwise.state.set({ view: 'model', stat: 'induction' })")
    assert "–" not in page.locator(".view-model .tile").first.get_attribute("title")
    field.fill("  ")  # nothing to read: what is shown stays
    field.press("Enter")
    page.wait_for_timeout(50)
    assert page.evaluate("headwise.app.source.live.prompt") == "the mat. The cat sat on the mat"


def test_what_is_typed_meanwhile_stays(page: Tab) -> None:
    """The field is emptied before the answer is there; a text from the address is written into it."""
    page.evaluate("""() => {
        const field = headwise.app.root.querySelector("#prompt");
        for (const text of ["the cat sat on the mat", ""]) {
            field.value = text;
            field.dispatchEvent(new Event("input"));
        }
    }""")
    wait_for_run(page, "the cat sat on the mat")
    assert page.locator("#prompt").input_value() == ""
    page.evaluate("location.hash = 'prompt=the%20mat'")
    wait_for_run(page, "the mat")
    assert page.locator("#prompt").input_value() == "the mat"


@pytest.mark.opening
def test_what_is_worth_a_look_is_found_after_two_quick_edits(context: BrowserContext, minilm_page: Path) -> None:
    """The first edit stops the search, the second one shows again what is shown."""
    tab = context.new_page()
    text = "The bank by the river raised its rates. " * 15
    tab.goto(f"{minilm_page.as_uri()}#prompt={text[:40]}")
    tab.wait_for_function("() => window.headwise && headwise.app.source.live.run !== null")
    assert tab.evaluate("headwise.state.pinRow") is not None  # it opens on a pair
    tab.evaluate("(prompt) => headwise.state.set({ prompt })", text)
    tab.wait_for_function("(prompt) => headwise.app.source.live.prompt === prompt", arg=text)
    tab.evaluate("() => { const { live } = headwise.app; live.switchHead(); setTimeout(() => live.switchHead(), 5); }")
    tab.wait_for_function("() => headwise.app.stack.layers.every(({ supports }) => supports)")
    assert tab.evaluate("headwise.app.source.live.edits") == []
    assert tab.locator(".opening button[data-kind]").count() > 0
    layer, head = tab.evaluate("headwise.app.opening.items.map(({ layer, head }) => [layer, head])[0]")
    tab.evaluate("(edits) => headwise.state.set({ edits })", [{"kind": "ablate", "layer": layer, "heads": [head]}])
    tab.wait_for_function("() => headwise.app.source.live.edits.length && !headwise.app.opening.isLate")
    assert [layer, head] not in tab.evaluate("headwise.app.opening.items.map(({ layer, head }) => [layer, head])")
    tab.close()


def test_a_pinned_pair_stays_while_its_tokens_stay(page: Tab) -> None:
    page.evaluate("headwise.state.set({ pinRow: 3, pinCol: 1, row: 2 })")
    for text, kept in (("the cat sat on", [3, 1, None]), ("the cat ran", [None, None, None])):
        page.evaluate("(prompt) => headwise.state.set({ prompt })", text)
        wait_for_run(page, text)
        assert page.evaluate("(({ pinRow, pinCol, row }) => [pinRow, pinCol, row])(headwise.state)") == kept


def test_a_head_is_switched_off_and_on_but_no_edge(page: Tab) -> None:
    assert page.locator(".predictions h2").inner_text() == "Predictions"
    assert page.locator(".predictions thead .token").inner_text() == "label"
    assert page.locator(".predictions .picker").is_hidden()
    page.evaluate("headwise.state.set({ layer: 1, head: 1, pinRow: 1, pinCol: 2 })")
    assert page.locator(".edits .block-edge, .edits .hint").evaluate_all("(all) => all.every(({ hidden }) => hidden)")
    page.get_by_role("button", name="Switch off layer 1 · head 1").click()
    page.wait_for_function("() => headwise.app.source.live.edits.length === 1")
    assert page.locator(".chip span").all_inner_texts() == ["layer 1 · head 1 off"]
    assert page.locator(".tile.off").count() == 1
    page.evaluate("headwise.state.set({ view: 'flow', row: 1 })")
    page.locator(".view-flow .note", has_text="heads that are off count like the others").wait_for()
    page.evaluate("headwise.state.set({ view: 'head' })")
    page.get_by_role("button", name="Switch on layer 1 · head 1").click()
    page.wait_for_function("() => headwise.app.source.live.edits.length === 0")
    for refused in ("block.1.1.2.3", "off.3.0", "off.1.2"):  # in an address that was written by hand
        page.evaluate(f"location.hash = 'edits={refused}'")
        page.locator(".alert", has_text="This page can only switch off heads, and only those of its model.").wait_for()
        assert page.evaluate("headwise.state.edits") == []
        page.locator(".alert button").click()


def test_an_address_is_followed(page: Tab, context: BrowserContext, classifier_page: Path) -> None:
    tab = context.new_page()
    tab.goto(f"{classifier_page.as_uri()}#prompt=on%20the%20mat.%20the%20cat&edits=off.0.all&lang=zh&pinrow=6&pincol=1")
    wait_for_run(tab, "on the mat. the cat")
    assert tab.locator(".chip span").all_inner_texts() == ["第 0 层 · 所有头已关闭"]
    assert tab.locator("#prompt").input_value() == "on the mat. the cat"
    assert tab.evaluate("[headwise.state.pinRow, headwise.state.pinCol]") == [6, 1]  # beyond the recorded text
    assert tab.locator("footer .status").inner_text() == ""
    assert tab.evaluate("[...headwise.untranslated]") == []
    tab.close()


def test_without_webassembly_the_recorded_text_is_shown(context: BrowserContext, classifier_page: Path) -> None:
    tab = context.new_page()
    tab.add_init_script("""
        const Whole = Blob;
        window.Blob = class extends Whole {
            constructor(parts, options) { super(["delete self.WebAssembly;", ...parts], options); }
        };
    """)
    tab.goto(classifier_page.as_uri())
    tab.locator(".alert").get_by_text(
        "so the page shows the recorded text only: WebAssembly with SIMD is missing"
    ).wait_for()
    assert tab.evaluate("headwise.app.stack.rows.labels") == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert tab.evaluate("headwise.app.stack.tile(0, 0, [0, 1], [0, 5], 1, 5, 'max').then((tile) => tile.length)") == 5
    for part in (".prompt", ".edits", ".predictions"):
        assert tab.locator(part).is_hidden()
    tab.close()


def test_a_damaged_model(context: BrowserContext, classifier_page: Path, tmp_path: Path) -> None:
    source = classifier_page.read_text("utf-8")
    begun = source.index('<script type="text/plain" id="weights">')
    end = source.index("</script>", begun)
    damaged = tmp_path / "page.html"
    damaged.write_text(source[: end - 400] + source[end:], "utf-8")
    tab = context.new_page()
    tab.goto(damaged.as_uri())
    tab.locator(".alert").get_by_text("The file is damaged: its model is not complete.").wait_for()
    tab.close()


def test_is_accessible(axe_tab: Tab, classifier_page: Path, minilm_page: Path) -> None:
    for path in (classifier_page, minilm_page):
        axe_tab.goto(path.as_uri())
        axe_tab.wait_for_selector(".predictions tbody tr")
        check_with_axe(axe_tab)


def test_is_as_large_as_its_weights(minilm_page: Path, classifier_page: Path) -> None:
    for path in (minilm_page, classifier_page):
        page = Page.read(path)
        assert path.stat().st_size <= 1.4 * len(page.blocks["weights"]) + 1.5e6
