"""Edits on families of Hugging Face models, fused and eager, against the same changes in eager code by hand."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import edits
from headwise.edits import Edit
from headwise.errors import EditRefused
from tests.capture.families.making import fresh
from tests.capture.families.models import build, seed
from tests.capture.families.run import examine, fitting
from tests.capture.parity import tensors
from tests.edits import oracle
from tests.versions import since

FAMILIES = """
albert bart bert blip bloom clip cohere2 deberta-v2 deepseek_v3 detr esm falcon flaubert gemma2 gpt2 gpt_neo gpt_oss
gptj imagegpt llama mistral mpt mt5 openai-gpt opt persimmon phi3 qwen3_moe roformer swin t5 vit wav2vec2 whisper xlnet
"""
EAGER_ALONE = (
    *("blip", "bloom", "deberta-v2", "detr", "flaubert", "gemma2", "gpt_neo", "gpt_oss", "gptj", "imagegpt", "mpt"),
    *("openai-gpt", "roformer", "xlnet"),
)
IN_PIECES = ("big_bird", "longformer", "longt5", "pegasus_x")

KINDS: dict[str, tuple[Edit, dict[str, oracle.Change]]] = {
    "temperature": (edits.temperature("*", 2.0), oracle.temperature(2.0)),
    "ablate": (edits.ablate("*", heads=1), oracle.ablated(1)),
    "block": (edits.block("*", queries=slice(1, None), keys=0), oracle.blocked(1, 0)),
    "steer": (edits.steer("*", keys=1, by=5.0), oracle.steered(1, 5.0)),
    "topk": (edits.topk("*", 2), oracle.largest(2)),
}


@functools.cache
def made(family: str, how: str) -> tuple[Any, dict[str, Any]]:
    report = examine(family, [])
    assert report.size is not None, report.error
    eager = build(family, "eager", report.size)
    inputs = fitting(eager, family)
    return (eager if how == "eager" else build(family, how, report.size)), inputs


def run(model: Any, inputs: dict[str, Any]) -> list[Tensor]:
    seed()
    with torch.no_grad():
        return [x.float() for x in tensors(model(**fresh(inputs))) if x.is_floating_point() and x.numel()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES.split())
def test_an_edit_is_the_same_change_by_hand(family: str, kind: str) -> None:
    since("transformers", "5.20")
    if (family, kind) == ("gpt_oss", "topk"):
        pytest.skip("by hand, the sink is one of the two")
    edit, change = KINDS[kind]
    model, inputs = made(family, "eager")
    plain = run(model, inputs)
    with oracle.changed(**change) as calls:
        expected = run(model, inputs)
    assert calls
    assert max(float((a - b).abs().max()) for a, b in zip(plain, expected, strict=True)) > 1e-3
    for how in ("eager",) if family in EAGER_ALONE else ("eager", "sdpa"):
        model, _ = made(family, how)
        before = run(model, inputs)
        with headwise.edit(model, edit):
            found = run(model, inputs)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
        assert all(map(torch.equal, run(model, inputs), before))


@pytest.mark.parametrize("family", IN_PIECES)
def test_attention_in_pieces_is_refused_by_name(family: str) -> None:
    since("transformers", "5.20")
    model, inputs = made(family, "eager")
    before = run(model, inputs)
    with (
        pytest.raises(EditRefused, match=r"[Aa]tt[\w.]* cannot be edited: .*in pieces"),
        headwise.edit(model, edits.temperature("*", 2.0)),
    ):
        run(model, inputs)
    assert all(map(torch.equal, run(model, inputs), before))
