"""Visits of the page's header and panel, and of the views of one head: what each says is true."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from headwise import masks
from headwise.records import AttentionRecord, Seen
from headwise.text import Frames, Patches
from headwise.viewer import facts, inputs

from .conftest import look, placed, record, write
from .reader import Reader, causal, made, truth

ANIMALS = ["cat", "owl", "pig", "ant", "fox", "hen", "jay", "cat", "owl", "pig", "ant", "fox", "hen", "jay"]
INSIGHT = ".opening .seen p"


def visit_the_header(reader: Reader) -> None:
    seen = look(*(record(heads=4, kv_heads=2, length=15) for _ in range(3)))
    (text,) = seen.tokens
    seen.tokens = [replace(text, cut=7, unknown=tuple(place in (2, 5) for place in range(15)))]
    reader.open(seen, "view=text&layer=1&head=1")
    facts = "header .facts"
    reader.says("{n} layers", facts, n=3)
    reader.says("{n} heads", facts, n=4)
    reader.says("{n} key/value", facts, n=2)
    reader.says("{tokens} ({n} more did not fit)", facts, tokens="15 tokens", n=7)
    reader.says("{n} tokens", facts, n=15)
    reader.says("{tokens}, {n} unknown to this model", facts, tokens="15 tokens (7 more did not fit)", n=2)
    reader.says("… {n} more tokens did not fit into the model", ".view-text .cut", n=7)
    seen.tokens = [replace(text, unknown=tuple(place < 5 for place in range(15)))]
    reader.open(seen, "view=head")
    reader.says(
        "The model knows {n} of the {all} tokens as [UNK] only: its attention says little about this text.",
        INSIGHT,
        n=5,
        all=15,
    )
    reader.tab.locator(".search input").fill("w1")  # w1, w10, …, w14
    reader.tab.locator(".search input").press("Enter")
    reader.tab.locator(".search input").press("Enter")
    reader.says("{n} of {count}", ".search .count", n=2, count=sum("w1" in label for label in text.labels))


def visit_the_sizes_of_what_is_no_text(reader: Reader) -> None:
    facts = "header .facts"
    reader.open(Seen([placed(record(length=4, keys=7), "cross", kind="cross")]), "view=head")
    reader.says("{n} positions", facts, n=4)
    reader.says("{queries} attending to {keys}", facts, queries="4 positions", keys="7 positions")
    seen = look(record(length=16))
    seen.tokens = Patches(3, 5, ("[CLS]",))
    reader.open(seen, "view=head")
    reader.says("{n} patches", facts, n=16)
    seen = look(record(length=12))
    seen.tokens = [Frames(12, 0.025).tokens()]
    reader.open(seen, "view=head")
    reader.says("{n} frames of {ms} ms ({s} s)", facts, n=12, ms=25.0, s=12 * 0.025)


def visit_the_rounding(reader: Reader) -> None:
    """No weight is farther from the truth than the page says."""
    seen = look(record(length=15, mask=masks.causal(), size=2.0))
    shown = torch.tensor(write(reader.folder / "read.html", seen).weights())
    reader.open(seen, "view=neuron&row=7&col=3")
    reader.says("weights within {tolerance} of the model's", "header .facts", near=0.0, tolerance=1e-4)
    reader.says(
        "q and k are rounded in this file: the weight is within {tolerance}.",
        ".view-neuron p",
        near=0.0,
        tolerance=1e-4,
    )
    assert 1e-6 < (shown - truth(seen[0], causal(15))).abs().max() <= 1e-4


def animals() -> tuple[AttentionRecord, torch.Tensor]:
    """Head 0 looks at the token before, head 1 at the first one, head 2 at what followed; and what may be looked at.

    Two queries of head 2 may look at nothing.
    """
    length, far = len(ANIMALS), 4.5 * len(ANIMALS) ** 0.5
    places = torch.arange(length)
    targets = [(places - 1).clamp(min=0), 0 * places, (places - 6).clamp(min=0)]
    allowed = causal(length).repeat(3, 1, 1)
    allowed[2, 2:4] = False
    q = far * torch.eye(length)[torch.stack(targets)] + torch.randn(3, length, length)
    return made(q, torch.eye(length).expand(3, -1, -1), allowed), allowed


def visit_the_insights(reader: Reader) -> None:
    length = len(ANIMALS)
    of, allowed = animals()
    weights = truth(of, allowed)
    pair = torch.randn(1, length, length)
    pair[0, 9, 3] += 5.5 * length**0.5  # in layer 1, the second pig looks at the first ant
    other = made(pair, torch.eye(length)[None], causal(length))
    seen = look(of, other, labels=ANIMALS)
    seen.tokens = [replace(seen.tokens[0], ids=tuple(map(ANIMALS.index, ANIMALS)))]
    reader.open(seen, "view=head")

    def choose(kind: str) -> None:
        reader.tab.locator(f".opening li button[data-kind={kind}]").first.click()

    choose("pair")
    layer, row, col = reader.tab.evaluate("(({ layer, pinRow, pinCol }) => [layer, pinRow, pinCol])(headwise.state)")
    assert (layer, row, col) == (1, 9, 3)
    share = float(truth(other, causal(length))[0, 9, 3])
    named = {"head": "layer 1 · head 0", "from": "pig", "to": "ant"}
    reader.says("{head}: {from} looks at {to}, {share}.", INSIGHT, **named, share=share)
    even = {"times": share * 10, "share": 1 / 10, "n": 10}
    reader.says(
        "That is {times} times an even share: {share} for each of the {n} tokens that it can see.", INSIGHT, **even
    )

    choose("previous")
    found = {"head": "layer 0 · head 0", "share": float(weights[0].diagonal(-1).mean()), "n": length - 1}
    reader.says("{head} gives {share} to the token just before, on average over {n} queries.", INSIGHT, **found)
    choose("sink")
    found = {"head": "layer 0 · head 1", "share": float(weights[1, :, 0].mean()), "n": length}
    reader.says(
        "{head} gives {share} to the first token that can be seen, on average over {n} queries: a sink.",
        INSIGHT,
        **found,
    )
    choose("induction")
    followed = weights[2, torch.arange(7, length), torch.arange(1, length - 6)]
    found = {"head": "layer 0 · head 2", "share": float(followed.mean()), "n": length - 7}
    reader.says(
        "{head} gives {share} to what followed earlier occurrences of the same token, on average over {n} queries.",
        INSIGHT,
        **found,
    )


def visit_labels_that_are_left_out(reader: Reader) -> None:
    """All 16 have room; of 57 every second, fifth or tenth has the 15 pixels of a label."""
    for length in (16, 57):
        reader.open(look(record(length=length)), "view=head&hints=false")
        reader.tab.wait_for_function("() => headwise.app.view.map.plates.complete")
        cell = reader.tab.evaluate("headwise.app.view.map.rows.z")
        n = next(n for n in (1, 2, 5, 10) if n * cell >= 15)
        assert (n > 1) == (length > 16)
        if n > 1:
            reader.says("Labels name one token in {n}; zoom in for all", ".legend .about", n=n)
        else:
            assert "Labels" not in reader.tab.locator(".legend .about").inner_text()


def visit_a_head(reader: Reader) -> None:
    allowed = torch.ones(5, 9, dtype=torch.bool)
    allowed[:, :2] = False
    q, k = torch.randn(2, 5, 4), torch.randn(2, 9, 4)
    of = made(q, k, allowed)
    reader.open(look(of), "view=head&head=1&sink=true")
    weights = truth(of, allowed)[1]
    size = {"head": "layer 0 · head 1", "rows": 5, "cols": 9}
    reader.says(
        "Attention of {head}: {rows} rows, {cols} columns. Arrow keys move from cell to cell",
        ".heat-map canvas",
        **size,
    )
    reader.says("first token attended to ({n}) hidden · values unchanged, not renormalised", ".hidden-sink", n=2)
    top = float(weights[:, 3:].max())
    ramp = reader.says("from {low} to {high}", ".view-head .colour-bar", low=0, high=top)
    reader.says("Colours: {weights}, {scale} scale", ".view-head .colour-bar", weights=ramp[0], scale="linear")


def visit_dots_of_several_weights(reader: Reader) -> None:
    """A map of fewer dots than cells: as many of them as a dot holds at most, in the picture that is drawn."""
    reader.open(look(record(heads=1, length=700)), "view=head")
    cells = """async () => {
        const { map } = headwise.app.view;
        await map.settled();
        const [{ canvas }] = map.plates.list();
        const most = (cells, dots) => Math.max(...Array.from({ length: dots }, (_, at) =>
            Math.ceil(((at + 1) * cells) / dots) - Math.ceil((at * cells) / dots)));
        return [most(700, canvas.height), most(700, canvas.width)];
    }"""
    rows, cols = reader.tab.evaluate(cells)
    assert rows > 1
    reader.says(
        "exact · each dot is the largest of up to {rows} × {cols} weights", ".controls-head .note", rows=rows, cols=cols
    )


def visit_all_heads(reader: Reader) -> None:
    q, k = torch.randn(1, 15, 4), torch.randn(1, 15, 4)
    of = made(q.repeat(3, 1, 1), k.repeat(3, 1, 1), causal(15))
    weights = truth(of, causal(15))
    reader.open(look(of), "view=model&stat=entropy")
    entropy = float(-torch.xlogy(weights[0], weights[0]).sum(-1).mean())
    found = reader.says("{value} in every head", ".model-controls .scale", value=...)
    assert float(found[0].split()[0]) == pytest.approx(entropy, abs=0.006)

    reader.patch.setattr(facts, "QUICK_CELLS", 100)
    reader.patch.setattr("headwise.viewer.page.ESTIMATED_ROWS", 40)
    long = look(record(length=200))
    reader.open(long, "view=model&stat=entropy")
    used = int((~long[0].statistics("lse", rows=40).lse[0, 0].isnan()).sum())
    reader.says("Estimated from {some} of {all} rows.", ".view-model .about", some=used, all=200)


def visit_a_surface(reader: Reader) -> None:
    of = record(length=130, keys=170)
    reader.open(look(of), "view=surface&head=1&row=50&col=60")
    reader.says("{rows} queries, {cols} keys", ".view-surface canvas", rows=130, cols=170)
    surface = {"head": "layer 0 · head 1", "size": "130 queries, 170 keys"}
    reader.says("Surface of {head}: {size}. Arrow keys turn it", ".view-surface canvas", **surface)
    reader.says("Each step is the largest of up to {n} × {m} weights.", ".view-surface .limit", n=3, m=3)
    edges = [[step * length // 64 for step in range(65)] for length in (130, 170)]
    (low, past), (left, right) = (
        next((first, end) for first, end in pairwise(edge) if first <= at < end)
        for edge, at in zip(edges, (50, 60), strict=True)
    )
    most = float(truth(of)[1, low:past, left:right].max())
    block = {"n": past - low, "m": right - left, "most": most}
    reader.says("the largest of {n} × {m} is {most}", ".view-surface .tip .block", **block)


def visit_a_weight_and_its_elements(reader: Reader) -> None:
    of = record(length=15, dim=6, mask=masks.causal())
    q, k = of.q[0, 1, 9].double(), of.k[0, 1, 4].double()
    reader.open(look(of), "view=neuron&head=1&row=9&col=4")
    elements = ".view-neuron .elements"
    reader.says("{n} products", f"{elements} .of bdi", n=6)
    products = {"name": "q × k", "n": 6, "low": float((q * k).min()), "high": float((q * k).max())}
    reader.says("{name}: {n} numbers, from {low} to {high}", f"{elements} canvas", near=0.01, **products)
    for _ in range(3):
        reader.tab.keyboard.press("Shift+ArrowRight")
    numbers = {"q": float(q[2]), "k": float(k[2]), "p": float(q[2] * k[2]), "sum": float((q * k)[:3].sum())}
    reader.says(
        "element {d} of {n}: {q} × {k} = {p}; the sum up to here is {sum}",
        f"{elements} .told",
        near=0.01,
        d=3,
        n=6,
        **numbers,
    )
    reader.says("over {n} keys", ".view-neuron .steps", n=10)
    sunk: dict[str, Any] = {"sinks": torch.randn(2)}
    reader.open(look(record(length=15, **sunk)), "view=neuron&head=1&row=9&col=4")
    reader.says("over {n} keys and the sink", ".view-neuron .steps", n=15)
    reader.open(look(record(length=100)), "view=neuron&row=9&col=4")
    listed = ".view-neuron .keys .list .line"
    reader.says(
        "The {n} keys with the largest weights of {all}, and the chosen one; the sum is over all.",
        ".view-neuron .keys .limit",
        n=64,
        all=100,
    )
    shown = {int(each) for each in reader.tab.locator(listed).evaluate_all("(all) => all.map((x) => x.dataset.col)")}
    assert shown - {4} <= set(truth(reader.seen[0])[0, 9].topk(64).indices.tolist()) <= shown


def visit_texts_that_are_too_long(reader: Reader) -> None:
    reader.open(look(record(heads=3, length=1200, dim=1)), "view=lines&heads=0.1,0.2")
    reader.says(
        "Lines of so long a text are for up to {n} heads at once.", ".view-lines .limit", n=4_000_000 // 1200**2
    )
    reader.open(look(record(heads=1, length=2100, dim=1)), "view=lines")
    reader.says("This text is too long for lines: {n} weights. See the Head view.", ".view-lines .limit", n=2100**2)
    reader.patch.setattr(inputs, "LONG", 20)
    reader.open(look(record(length=5, keys=23)), "view=head")
    reader.says(
        "This view shows each token, and {n} tokens are too many for it. The Head view shows them.",
        ".tablist button",
        n=23,
    )
