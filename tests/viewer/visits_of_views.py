"""Visits of the views of several heads, of two texts, of a profile and of a live model: what each says is true."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.cli.files import NamedText
from headwise.cli.live import live_causal
from headwise.experiments import Patching
from headwise.experiments.sweeping import Over
from headwise.models import Bert
from headwise.models.checkpoint import default_model
from headwise.profiles import profile
from headwise.records import AttentionRecord, Seen
from headwise.text import Patches, Tokenizer
from headwise.viewer import inputs_of, write_page
from headwise.viewer.carried import carry_bert
from headwise.viewer.patched import write_patching_page
from headwise.viewer.profiled import write_profile_page
from headwise.viewer.server import serving, serving_live
from tests.profiles.tiny import code, tiny

from .conftest import PIG, PROMPT, look, placed, record
from .reader import Reader, causal, rollout, small_llama, truth, unread
from .test_carried import as_portable, in_python, pack_as_the_page
from .test_flow import with_gradients

COMPARED = ".view-compare .said .note"


def visit_the_lines(reader: Reader) -> None:
    of = record(heads=3, length=200, dim=1, size=0.3)
    reader.open(look(of), "view=lines&heads=0.2&pinrow=7")
    reader.says("mean of {n} heads: {heads}", ".attention-caption", n=2, heads="0.0, 0.2")
    reader.go(pinRow=None, row=None, scale="linear")
    weights = truth(of)[[0, 2]]
    drawn = int((weights / max(float(weights.max()), 4 / 200) >= 0.02).sum())
    reader.says(
        "Only the strongest lines are drawn, {n} are not. Point at a token to see all of its lines.",
        ".view-lines .limit",
        n=drawn - 5000,
    )


def visit_the_flow(reader: Reader) -> None:
    seen = look(*(record(length=15, mask=masks.causal()) for _ in range(2)))
    shares = rollout([truth(each, causal(15)) for each in seen])[11]
    reader.open(seen, "view=flow&pinrow=11")
    reader.says("rollout over {n} layers", ".view-flow .note", n=2)
    reader.says("all other tokens together {share}", ".view-flow", share=float(shares.sort().values[:-8].sum()))
    places = shares.argsort(descending=True)[:3].tolist()
    largest = ", ".join(f"w{place} {place}: {shares[place]:.4f}" for place in places)
    about = {"kind": "rollout", "token": "w11 11", "row": "input", "most": ...}
    found = reader.says("{kind} of {token}, {row}; largest: {most}", ".view-flow canvas", **about)
    for told, place in zip(found.string.partition("largest: ")[2].split(", "), places, strict=True):
        assert told.startswith(f"w{place} {place}: "), (told, largest)
        assert abs(float(told.partition(": ")[2]) - float(shares[place])) < 5e-4, (told, largest)
    reader.open(Seen([placed(record(length=5, keys=9), "layers.0")]), "view=head")
    reader.says(
        "Flow needs as many rows as columns. This stack has {rows} rows and {cols} columns.",
        ".tablist button",
        rows=5,
        cols=9,
    )
    reader.open(with_gradients(), "view=flow&flow=relevance")
    reader.says("relevance over {n} layers, without the initial 1 of the token itself", ".view-flow .note", n=2)


def visit_a_flow_that_is_too_much(reader: Reader) -> None:
    """A server computes nothing before it is asked: so many weights are none that exist."""
    seen = look(*(unread(32, 20_000) for _ in range(2)))
    with serving(inputs_of(seen), title="long") as address, reader.online() as page:
        page.tab.goto(f"{address}#lang=en&view=flow&strip=false")
        page.says(
            "Rollout over {layers} layers of {tokens} tokens needs {cells} weights, more than this page computes "
            "({most}). In Python: headwise.analyses.rollout(seen, rows=…).",
            ".view-flow .note",
            layers=2,
            tokens=20_000,
            cells=2 * 32 * 20_000.0**2,
            most=...,
        )


def visit_an_image(reader: Reader) -> None:
    for prefix in (("[CLS]",), tuple(f"[R{i}]" for i in range(6))):
        of = record(length=15 + len(prefix))
        second = record(length=15 + len(prefix))
        seen = look(of, second)
        seen.tokens = Patches(3, 5, prefix)
        reader.open(seen, "view=image&head=1&row=9&pinrow=9")
        weights = truth(of)[1, 9]
        patches, rest = float(weights[len(prefix) :].sum()), float(weights[: len(prefix)].sum())
        if len(prefix) == 1:
            named = reader.says(
                "All patches together {weight}; {others}.", ".attention-caption .note", weight=patches, others=...
            )
            assert abs(float(named[0].rstrip(".").rpartition(" ")[2]) - rest) < 5e-4
        else:
            reader.says("{n} other tokens {weight}", ".attention-caption .note", n=6, weight=rest)
    reader.go(over="rollout")
    reader.says("{token} is made of: rollout over {n} layers", ".attention-caption .title", token=..., n=2)
    place = rollout([truth(each) for each in seen])[9].argmax()
    assert f'data-place="{int(place)}"' in reader.tab.locator(".attention-caption li").first.evaluate(
        "(x) => x.outerHTML"
    )


def divergence(left: Tensor, right: Tensor, rows: list[tuple[int, int]], cols: list[tuple[int, int]]) -> float:
    """The mean Jensen-Shannon divergence of the rows in common, over the keys of both."""

    def shared(weights: Tensor, side: int) -> tuple[Tensor, Tensor]:
        some = weights[[each[side] for each in rows]]
        keys = [each[side] for each in cols]
        return some[:, keys], some[:, [key for key in range(some.shape[1]) if key not in keys]]

    (p, own_p), (q, own_q) = shared(left, 0), shared(right, 1)
    p, q = torch.cat([p, own_p, 0 * own_q], -1), torch.cat([q, 0 * own_p, own_q], -1)
    middle = (p + q) / 2
    return float(sum(torch.xlogy(x, x / middle).sum(-1) for x in (p, q)).mean() / 2)  # type: ignore[union-attr]


def visit_two_texts(reader: Reader) -> None:
    """The same text twice; then one word replaced, one left out, two more at the end."""
    texts = [text.split() for text in ("cat owl pig ant fox hen jay elk", "cat owl bee ant hen jay elk gnu dog")]
    common = [(0, 0), (1, 1), (3, 3), (5, 4), (6, 5), (7, 6)]
    both = [[record(length=len(text)) for _ in range(2)] for text in texts]
    alike = [look(record(length=8), labels=texts[0]) for _ in range(2)]
    reader.open(alike, "view=compare")
    reader.says("The same {n} tokens on both sides.", COMPARED, n=8)
    reader.open([look(*each, labels=text) for each, text in zip(both, texts, strict=True)], "view=compare")
    reader.says("{n} tokens in common", COMPARED, n=6)
    reader.says("{n} replaced", COMPARED, n=1)
    reader.says("{n} only left", COMPARED, n=1)
    reader.says("{n} only right", COMPARED, n=2)
    reader.says("{parts}.", COMPARED, parts="6 tokens in common, 1 replaced, 1 only left, 2 only right")
    reader.go(compare="difference")
    reader.says("{n} replaced (one | other)", COMPARED, n=1)
    reader.says("{n} only left (◂)", COMPARED, n=1)
    reader.says("{n} only right (▸)", COMPARED, n=2)
    parts = "6 tokens in common, 1 replaced (one | other), 1 only left (◂), 2 only right (▸)"
    reader.says("{parts}.", COMPARED, parts=parts)
    apart = {
        (layer, head): divergence(*(truth(each[layer])[head] for each in both), common, common)
        for layer in range(2)
        for head in range(2)
    }
    for (layer, head), nats in apart.items():
        named = f"layer {layer} · head {head}"
        reader.says("{head}: {n} nats", ".view-compare .where button", near=1e-3, head=named, n=nats)
    (layer, head), most = max(apart.items(), key=lambda each: each[1])
    reader.says(
        "Most: {head}, {n} nats. Mean Jensen–Shannon divergence of the rows in common ({rows}), others are left out; "
        "0 = equal, 0.693 = no key in common. A token that only one side has is a key of its own.",
        ".view-compare .where .note",
        near=1e-3,
        head=f"layer {layer} · head {head}",
        n=most,
        rows=6,
    )
    reader.open([look(record(length=8), labels=text[:8]) for text in texts], "view=compare&align=positions")
    reader.says("By position: {n} of {count} tokens differ.", COMPARED, n=5, count=8)
    crossed = [Seen([placed(record(length=4, keys=keys), "cross", kind="cross")]) for keys in (7, 9)]
    reader.open(crossed, "view=compare")
    same, more = "The same 4 tokens on both sides.", "7 tokens in common, 2 only right (▸)."
    reader.says("Rows: {rows} Columns: {cols}", COMPARED, rows=same, cols=more.replace(" (▸)", ""))


def visit_two_long_texts(reader: Reader) -> None:
    reader.open([look(record(heads=1, length=600, dim=2)) for _ in range(2)], "view=compare&compare=difference")
    cells = """async () => {
        const { map } = headwise.app.view;
        await map.apart.settled();
        const { canvas } = map.apart.plates.list().at(-1);
        return [600 / canvas.height, 600 / canvas.width].map(Math.ceil);
    }"""
    rows, cols = reader.tab.evaluate(cells)
    reader.says("exact · each dot is the largest of up to {rows} × {cols} differences", COMPARED, rows=rows, cols=cols)
    reader.open([look(unread(2, 3000)) for _ in range(2)], "view=compare&compare=difference")
    height = reader.tab.evaluate("""async () => {
        const { plates } = headwise.app.view.map.apart;
        plates.mostWeights = 4.5e6;
        headwise.app.go({ head: 1 });
        await headwise.app.view.map.apart.settled();
        return plates.whole.coarse.height;
    }""")
    reader.says("sampled: {n} of {count} rows · zoom in for exact weights", COMPARED, n=height, count=3000)
    reader.says("coarse: one of every {n} rows; zoom in for every cell", COMPARED, n=math.ceil(3000 / height))
    reader.says("estimated from {n} of {count}", ".view-compare .where .note", n=64, count=3000)


WORDS = ["the", "cat", "saw", "the", "dog", ",", "and", "the", "cat", "ran"]


def visit_a_profile_of_several_texts(reader: Reader) -> None:
    write_profile_page(
        reader.folder / "heads.html", profile(tiny(2.0), [" ".join(WORDS)] * 3, length=16), title="heads"
    )
    reader.tab.goto(f"{(reader.folder / 'heads.html').as_uri()}#lang=en")
    reader.says("{n} texts", "header .facts", n=3)


def visit_effects_of_patching(reader: Reader) -> None:
    """The largest effects of two layers, three heads and four positions, then without positions, then without heads."""
    torch.manual_seed(0)
    effects, others = torch.randn(2, 2, 3, 4).double() / 4
    cases: list[tuple[Over, Tensor, Tensor]] = [
        ("positions", effects, others),
        ("heads", effects[..., 0], others[..., 0]),
        ("residual", effects[:, :1], others[:, :1]),
    ]
    for over, found, given in cases:
        labels = ("the", "cat", "sat", "on") if found.ndim == 3 else ()
        patched = Patching(("a", "b"), found, given, 0.75, 0.25, labels, over=over)
        write_patching_page(reader.folder / "patching.html", patched, title="patching")
        reader.tab.goto("about:blank")
        reader.tab.goto(f"{(reader.folder / 'patching.html').as_uri()}#lang=en")
        reader.says("metric: clean {clean}, corrupted {corrupted}", "header .facts", clean=0.75, corrupted=0.25)
        r = float(torch.corrcoef(torch.stack([found.flatten(), given.flatten()]))[0, 1])
        reader.says("correlation with attribution patching: {r}", "header .facts", r=r)
        top = float(f"{found.abs().max():.2g}")
        reader.says("from {low} to {high}", ".colour-bar", low=-top, high=top)
        layer, head, *at = (int(place) for place in np.unravel_index(int(found.argmax()), found.shape))
        best = {"effect": float(found.max()), "layer": f"layer {layer}", "head": f"head {head}"}
        if over == "residual":
            del best["head"]
            reader.says(
                "{effect} · {layer} · {position}", "ol li:first-child", **best, position=f"{labels[at[0]]} {at[0]}"
            )
        elif at:
            position = f"{labels[at[0]]} {at[0]}"
            reader.says("{effect} · {layer} · {head} · {position}", "ol li:first-child", **best, position=position)
        else:
            reader.says("{effect} · {layer} · {head}", "ol li:first-child", **best)


def visit_a_profile(reader: Reader) -> None:
    """Head 0 looks at the token before, head 1 at all alike; queries and keys are words, between [CLS] and [SEP]."""
    length = len(WORDS) + 2
    scores = torch.stack([2.0 * torch.eye(length).roll(1, 0), torch.zeros(length, length)]).double()
    scores[0, 0] = 0.0
    weights = scores.softmax(-1)
    text = weights[:, 1:-1, 1:-1]
    made = profile(tiny(2.0), [" ".join(WORDS)], length=16)
    write_profile_page(reader.folder / "heads.html", made, title="heads")
    tab = reader.tab
    tab.goto(f"{(reader.folder / 'heads.html').as_uri()}#lang=en")
    facts = "header .facts"
    reader.says("{n} heads", facts, n=2)
    reader.says("{n} tokens", facts, n=length)
    offsets = {d: float(text[0].diagonal(d).sum() / len(WORDS)) for d in range(1 - len(WORDS), len(WORDS))}
    best = sorted(offsets, key=lambda d: -round(offsets[d], 5))
    reader.says("Weight by relative position: most at {place}", ".card svg", place=f"{best[0]:+d}")
    tab.get_by_role("searchbox").fill("dog")
    reader.says("{n} of {count} heads", ".count", n=2, count=2)
    tab.get_by_role("searchbox").fill("elk")
    reader.says("{n} of {count} heads", ".count", n=0, count=2)
    tab.get_by_role("searchbox").fill("")
    tab.locator(".card").first.click()
    found = reader.says("Most: {places}.", ".positions figcaption", places=...)
    told = dict(each.split(": ") for each in found[0].removeprefix("Most: ").rstrip(".").split(", "))
    assert next(iter(told)) == f"{best[0]:+d}"
    assert len(told) == 3
    for offset, share in told.items():
        assert abs(offsets[int(offset)] - float(share)) < 0.0051
    same = ", ".join(f"{offset}: {share}" for offset, share in told.items())
    reader.says("Weight by relative position. Most: {places}", ".positions svg", places=same)

    entropy = -torch.xlogy(weights, weights).sum(-1)[0, 1:-1]
    bins = torch.bincount((entropy / (math.log(16) / 24)).long(), minlength=24)
    low, high = (float(int(bins.argmax()) + end) * math.log(16) / 24 for end in (0, 1))
    bar = reader.says("the tallest bar is {low} to {high} {unit}", ".histograms", low=low, high=high, unit="nats")
    reader.says("in {unit}: {most}", ".histograms figcaption", unit="nats", most=bar[0])
    reader.says("Queries: {n}.", ".columns tr:has-text('previous token')", n=length - 1)
    reader.says("Queries: {n}.", ".columns tr:has-text('duplicate token')", n=3)

    largest = text[0].clone().fill_diagonal_(0).max(-1).values
    score = float((largest * (largest * length).log()).max())
    reader.says("score {score} · text {text}", ".example .caption", score=score, text=0)
    figure = tab.locator(".example").first
    query = next(
        i for i, each in enumerate(figure.locator(".token").all()) if "query" in str(each.get_attribute("class"))
    )
    figure.get_by_text("The whole row").click()
    row = weights[0, query]
    reader.says("{weight} at {place}", ".example .row li", weight=float(row.max()), place=int(row.argmax()))


def visit_pairs_that_were_dropped(reader: Reader) -> None:
    """More pairs than are kept: the true weight of each pair is at most so much above what is shown."""
    names = list({code(name): name for name in (f"w{i}" for i in range(300))}.values())[:150]
    texts = [" ".join(names[first::step][:13]) for step in (1, 2, 3) for first in range(0, 110, 12)] + ["w0 w1"] * 3
    made = profile(tiny(2.0), texts, length=16)
    write_profile_page(reader.folder / "heads.html", made, title="heads")
    reader.tab.goto(f"{(reader.folder / 'heads.html').as_uri()}#lang=en&head=0.0")
    found = reader.says("Each may have up to {n} more.", "section .about", n=...)
    most = float(found[0].split()[-2])
    true: dict[str, float] = {}
    for text in texts:
        words = text.split()
        share = float(torch.tensor([2.0] + [0.0] * (len(words) + 1)).double().softmax(-1)[0])
        for before, word in itertools.pairwise(words):
            pair = f"{word} → {before}"
            true[pair] = true.get(pair, 0.0) + share
    lines = reader.tab.locator("section:has(h3:text('Strongest pairs')) tbody tr").all_inner_texts()
    shown = dict(re.split(r"\s*\t\s*", line) for line in lines)
    missing = [true[pair] - float(weight) for pair, weight in shown.items() if pair in true]
    assert missing
    assert most > 0
    assert -0.006 <= min(missing) <= max(missing) <= most + 0.005
    assert max(missing) > most - 0.011  # the bound is reached: these pairs occur in equal numbers


def visit_a_live_model(reader: Reader) -> None:
    """The same head without its output, in transformers; and two queries that may look at nothing."""
    model, tokenizer = small_llama(reader.folder, PROMPT)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    layer = model.model.layers[1].self_attn
    width = layer.o_proj.in_features // 2

    def without(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (torch.cat([given[0][..., :width], 0 * given[0][..., width:]], -1),)

    with torch.no_grad():
        plain = model(ids).logits[0, PIG].double().log_softmax(-1)
        layer.o_proj.register_forward_pre_hook(without)
        edited = model(ids).logits[0, PIG].double().log_softmax(-1)
    nats = float((plain.exp() * (plain - edited)).sum())
    distance = float((plain.exp() - edited.exp()).abs().sum() / 2)
    live = live_causal(str(reader.folder), NamedText("TEXT", PROMPT, PROMPT), None)
    with serving_live(live, PROMPT) as url, reader.online() as page:
        page.tab.goto(f"{url}#lang=en&edits=off.1.1")
        told = page.says("{n} nats", ".summary", near=1e-4, n=nats)
        page.says(
            "Total variation {distance} · KL(plain ‖ edited) {kl}.",
            ".summary",
            near=1e-4,
            distance=distance,
            kl=told[0],
        )
        moved = 100 * (edited.exp() - plain.exp())
        token = next(each for each in plain.argsort(descending=True).tolist() if abs(moved[each]) > 0.02)
        page.says("{n} points", f"tr[data-token='{token}'] small", near=0.006, n=float(moved[token]))
        page.tab.goto("about:blank")
        page.tab.goto(f"{url}#lang=en&edits=block.all.all.0.0")
        page.says("In {n} places a query was left without any key.", ".summary", n=2)


def visit_a_model_in_the_page(reader: Reader) -> None:
    """Every weight of MiniLM by int8, as the page computes it, beside that of float32."""
    bert, tokenizer = Bert.from_pretrained(default_model()), Tokenizer.from_pretrained(default_model())
    text = "The animal didn't cross the street because it was too tired."
    tokens = tokenizer.encode(text)
    with torch.no_grad(), headwise.watch(bert, tokens=tokens) as seen:
        bert(torch.tensor([tokens.ids]))
    with as_portable():
        given = {"ids": tokens.ids, "gates": None}
        _, calls = in_python(pack_as_the_page(bert, "int8"), given)
    pairs = zip(calls, seen.records, strict=True)
    far = torch.stack([(AttentionRecord(call).weights() - record.weights()).abs() for call, record in pairs])
    path = reader.folder / "model.html"
    write_page(path, inputs_of(seen), title="MiniLM", carried=carry_bert(bert, tokenizer, text))
    reader.tab.goto(f"{path.as_uri()}#lang=en")
    reader.says("{dtype}, computed in this page in {n} ms", ".facts", dtype="int8", n=...)
    reader.says(
        "weights of the recorded text differ from float32 by {mean} on average, {most} at most",
        ".facts",
        near=1e-4,
        mean=float(far.mean()),
        most=float(far.max()),
    )
