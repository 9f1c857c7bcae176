"""A text that is watched while it is written: it is the same text, and what was certain stays."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headwise.errors import ArgumentError
from headwise.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headwise.tasks.text.decoding import follow, write
from headwise.tasks.text.steps import Decoding
from headwise.tasks.text.writing import followed
from tests.tasks.text.test_decoding import BEGIN, END, GREEDY, Table, random_model, writing

HOW: list[dict[str, Any]] = [
    {},
    {"sample": True, "seed": 3},
    {"no_repeat": 2},
    {"beams": 2},
    {"beams": 4, "length_penalty": 1.0},
    {"beams": 3, "length_penalty": 0.0, "no_repeat": 2},
]


@pytest.mark.parametrize("options", HOW, ids=str)
def test_it_is_what_is_written_at_once_and_nothing_that_was_certain_changes(options: dict[str, Any]) -> None:
    for seed in range(2):
        model = random_model(seed)
        for source in ([5, 3, 7], [9]):
            decoding = Decoding(BEGIN, END, (BEGIN,), **options)
            steps = list(follow(model, source, 12, decoding))
            assert steps[-1] == write(model, [source], [12], decoding)[0].ids
            for before, after in itertools.pairwise(steps):
                assert after[: len(before)] == before


def test_greedily_each_token_is_certain_at_once() -> None:
    table = Table([[0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    found = list(followed(writing(table, [9], GREEDY)))
    assert found == [[2], [2, 3], [2, 3], [2, 3]]  # the third step ended it


def test_a_beam_search_is_certain_of_what_its_hypotheses_have_in_common() -> None:
    """2 comes first whatever follows; after it 3 or 4, of which 4 turns out better."""
    table = Table([
        [0.0, 0.0, 1.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.6, 0.4],
        [0.0, 0.5, 0.0, 0.5, 0.0],
        [0.0, 1.0, 0.0, 0.0, 0.0],
    ])  # fmt: skip
    found = list(followed(writing(table, [9], Decoding(BEGIN, END, beams=2, length_penalty=0.0))))
    assert found[:2] == [[2], [2]]
    assert found[-1] == [2, 4]


def test_what_cannot_be_written_is_said_before_the_first_token() -> None:
    model = EncoderDecoder(EncoderDecoderConfig(12, dim=8, num_heads=2, encoder_layers=1, decoder_layers=1)).eval()
    with pytest.raises(ArgumentError, match="limits: expected at least 1"):
        follow(model, [3], 0, GREEDY)
    with pytest.raises(ArgumentError, match="sources: expected at least one token"):
        follow(model, [], 5, GREEDY)
