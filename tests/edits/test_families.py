"""Edits on families of Hugging Face models, fused and eager, against the same changes in eager code by hand."""

from __future__ import annotations

import pytest
import torch

import headwise
from headwise import edits
from headwise.errors import EditRefused
from tests.edits.parity import FAMILIES, KINDS, PATCHES, compare, made
from tests.versions import since

IN_PIECES = ("big_bird", "longformer", "longt5", "pegasus_x")
ALL = [*KINDS, *(f"patch {what}" for what in PATCHES)]
# What a softmax is between is not always found by hand.
NO_PATCHES = ("gpt_oss", "xlnet")
# Each family with one kind, and slowly with two more, so that each kind is tried on several: `python -m
# tests.edits.parity` tries all with all.
SOME = [
    pytest.param(family, kind, marks=pytest.mark.slow if part else ())
    for i, family in enumerate(FAMILIES.split())
    for part in range(3)
    if (kind := ALL[(i + 4 * part) % len(ALL)]) not in ALL[-5:] or family not in NO_PATCHES
]


@pytest.mark.parametrize(("family", "kind"), SOME)
def test_an_edit_is_the_same_change_by_hand(family: str, kind: str) -> None:
    since("transformers", "5.20")
    outcome = compare(family, kind)
    assert outcome
    assert set(outcome.values()) == {"equal"}, outcome


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", pytest.param("bert", marks=pytest.mark.slow), "bloom"])
def test_padding_on_the_left(family: str, kind: str) -> None:
    since("transformers", "5.20")
    outcome = compare(family, kind, "left")
    assert outcome
    assert set(outcome.values()) == {"equal"}, outcome


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("family", ["gpt2", "t5", pytest.param("bloom", marks=pytest.mark.slow)])
def test_gradients_of_the_parameters(family: str, kind: str) -> None:
    since("transformers", "5.20")
    outcome = compare(family, kind, gradients=True)
    assert outcome
    assert set(outcome.values()) == {"equal"}, outcome


@pytest.mark.parametrize("family", IN_PIECES)
def test_attention_in_pieces_is_refused_by_name(family: str) -> None:
    since("transformers", "5.20")
    model, inputs = made(family, "eager")
    with torch.no_grad():
        before = model(**inputs)[0]
        with (
            pytest.raises(EditRefused, match=r"[Aa]tt[\w.]* cannot be edited: .*in pieces"),
            headwise.edit(model, edits.temperature("*", 2.0)),
        ):
            model(**inputs)
        assert torch.equal(model(**inputs)[0], before)
