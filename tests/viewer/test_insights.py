"""What is worth a look in a run of a page's own model, found in node, against what Python finds in the same record."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import headwise
from headwise.models.checkpoint import default_model
from headwise.text import Tokenizer
from headwise.text.linking import linking_words
from headwise.viewer import facts_of, inputs_of

from .conftest import look
from .node import evaluate

SEED = random.randrange(2**31)  # other texts in each run; pytest prints it where a test fails
DEPTH = 4
CODE = """
    const { insightsOf } = await use("model/insights.js");
    return given.map(({ axis, ids, layers, facts }) => {
        const steps = insightsOf(axis, ids, layers, facts);
        for (let step = steps.next(); ; step = steps.next()) if (step.done) return step.value;
    });
"""


def draw_text(draw: random.Random, words: int) -> str:
    """Few words, which come again, with characters that the model does not know."""
    some = [*draw.sample(["tired", "animal", "unrelatably", "the", "cat", "B", "street", "1990", "of", "."], 5), "猫☃"]
    return " ".join(draw.choice(some) for _ in range(words))


def example(draw: random.Random, words: int, heads: int, sharp: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page's function gets, and the facts of a page of Python of the same record, two layers."""
    tokens = Tokenizer.from_pretrained(default_model()).encode(draw_text(draw, words))
    length = len(tokens.ids)
    records = []
    for _ in range(2):
        q, k = sharp * torch.randn(2, 1, heads, length, DEPTH)
        q[:, -1] = 6 * torch.nn.functional.one_hot(torch.arange(length) % DEPTH, DEPTH)  # one with a pattern
        records.append(headwise.attention(q, k, k, record=True)[1])
    seen = look(*records)
    seen.tokens = [tokens]
    facts = facts_of(inputs_of(seen), title="")
    layers = []
    for record in records:
        weights = record.weights()[0].float()
        before = torch.nn.functional.pad(weights.diagonal(-1, -2, -1), (1, 0), value=0.0)
        rows = {"previous": before.flatten().tolist(), "first_visible": weights[..., 0].flatten().tolist()}
        layers.append(
            {name: x.flatten().tolist() for name, x in (("q", record.q), ("k", record.k), ("lse", record.lse))}
            | {"rows": rows}
        )
    model = {"heads": heads, "dim": heads * DEPTH, "scale": DEPTH**-0.5, "linking": sorted(linking_words())}
    return {"axis": facts["axes"][0], "ids": tokens.ids, "layers": layers, "facts": model}, facts


def check_pairs(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert {**ours, "weight": 0} == {**theirs, "weight": 0}
        assert ours["weight"] == pytest.approx(theirs["weight"], rel=1e-3)


@pytest.mark.opening
def test_finds_what_python_finds() -> None:
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    torch.manual_seed(SEED)
    cases = [example(draw, draw.randint(0, 40), draw.randint(1, 4), draw.choice([0.5, 2.0, 4.0])) for _ in range(40)]
    cases.append(example(draw, 1400, 4, 2.0))  # of which some rows are examined
    pairs = patterns = 0
    for (_, facts), found in zip(cases, evaluate(CODE, [given for given, _ in cases]), strict=True):
        (stack,) = facts["inputs"][0]["stacks"]
        check_pairs(found["pairs"], stack["pairs"])
        pairs += len(found["pairs"])
        for layer, ours in zip(stack["layers"], found["supports"], strict=True):
            assert ours.keys() == layer["supports"].keys()
            for name, expected in layer["supports"].items():
                if expected is None:
                    assert ours[name] is None
                    continue
                patterns += name == "induction"
                assert ours[name]["queries"] == expected["queries"], name
                values = [np.array(each["values"], float) for each in (ours[name], expected)]
                np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-4, err_msg=name)
                if not expected["queries"][0]:
                    continue  # there is no chance either
                chances = [np.broadcast_to(each["chance"], len(values[0])) for each in (ours[name], expected)]
                np.testing.assert_allclose(*chances, rtol=1e-3, atol=1e-4, err_msg=name)
    assert pairs > 20
    assert patterns > 20
