"""`stream`: the pieces of a text are, together, what `predict` writes, whichever way it is decoded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headwise.errors import ArgumentError
from headwise.tasks.language import Language
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.translate import Translate
from tests.tasks import problems

TINY: dict[str, Any] = {"dim": 32, "heads": 2, "layers": 1, "vocab_size": 300, "monitor_every": 0, "dropout": 0.0}
SOURCES = ["ant bee cat", "dog elk fox gnu", "hen"]


@pytest.fixture(scope="module")
def translate() -> Translate:
    """It writes words, though not yet the right ones."""
    return Translate.fit(problems.copied(300), **TINY, ffn_dim=32, epochs=4, lr=1e-2, max_target_length=16)


@pytest.fixture(scope="module")
def causal() -> Language:
    options = {**TINY, "objective": "causal", "block": 16, "write": 12}
    return Language.fit(problems.twice(300), epochs=3, lr=1e-2, **options)


@pytest.mark.parametrize(
    "how", [{"beams": 1}, {"beams": 4, "length_penalty": 3.0}, {"beams": 1, "sample": True, "seed": 5}], ids=str
)
def test_pieces_of_a_translation_are_the_translation(translate: Translate, how: dict[str, Any]) -> None:
    translate.options = replace(translate.options, **how)
    found = [list(translate.stream(source)) for source in SOURCES]
    assert ["".join(pieces) for pieces in found] == [translate.predict([x])[0]["translation"] for x in SOURCES]
    assert all(map(all, found))
    assert max(map(len, found)) > 1


@pytest.mark.parametrize("sample", [False, True])
def test_pieces_of_a_continuation_are_the_continuation(causal: Language, sample: bool) -> None:
    causal.decoding = replace(causal.decoding, sample=sample)
    for source in ["ant bee ant", "d"]:
        pieces = list(causal.stream(source))
        assert "".join(pieces) == causal.predict([source])[0]["continuation"]
        assert len(pieces) > 1
        assert all(pieces)


def test_a_row_with_the_column_of_sources_is_an_input_too(translate: Translate) -> None:
    translate.options = replace(translate.options, beams=1, sample=False)
    assert "".join(translate.stream([{"source": "ant bee"}])) == "".join(translate.stream("ant bee"))


def test_one_input_at_a_time(translate: Translate, causal: Language) -> None:
    with pytest.raises(ArgumentError, match=r"stream: expected one input. Received: 2"):
        translate.stream(["ant", "bee"])
    with pytest.raises(ArgumentError, match=r"stream: expected one text. Received: 2"):
        causal.stream(["ant", "bee"])


def test_a_masked_model_writes_nothing_piece_by_piece() -> None:
    options = LanguageOptions(**TINY)
    task = Language.learn(Language.read(problems.twice(10), options), options)
    with pytest.raises(ArgumentError, match="stream: expected a model with objective=causal"):
        task.stream("a [MASK]")
