"""A text that is watched while it is written: it is the same text, and what was certain stays."""

from __future__ import annotations

import itertools

import pytest
import torch

from headwise.errors import ArgumentError
from headwise.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headwise.tasks.text.beam_search import searching
from headwise.tasks.text.decoding import Decoding, choosing, follow, likeliest, write
from headwise.tasks.text.steps import followed
from tests.tasks.text.test_decoding import BEGIN, END, Table, random_model

RULES = {"begin": BEGIN, "end": END, "never": (BEGIN,)}
HOW = [
    Decoding(),
    Decoding(sample=True, seed=3),
    Decoding(no_repeat=2),
    Decoding(beams=2),
    Decoding(beams=4, length_penalty=1.0),
    Decoding(beams=3, length_penalty=0.0, no_repeat=2),
]


@pytest.mark.parametrize("decoding", HOW, ids=str)
def test_it_is_what_is_written_at_once_and_nothing_that_was_certain_changes(decoding: Decoding) -> None:
    for seed in range(2):
        model = random_model(seed)
        for source in ([5, 3, 7], [9]):
            given = {**RULES, "decoding": decoding}
            steps = list(follow(model, source, 12, **given))
            assert steps[-1] == write(model, [source], [12], **given)[0].ids
            for before, after in itertools.pairwise(steps):
                assert after[: len(before)] == before


def test_greedily_each_token_is_certain_at_once() -> None:
    table = Table([[0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    found = list(followed(choosing(table, torch.tensor([9]), likeliest, begin=BEGIN, end=END)))
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
    search = searching(table, torch.tensor([9]), beams=2, length_penalty=0.0, begin=BEGIN, end=END)
    found = list(followed(search))
    assert found[:2] == [[2], [2]]
    assert found[-1] == [2, 4]


def test_what_cannot_be_written_is_said_before_the_first_token() -> None:
    model = EncoderDecoder(EncoderDecoderConfig(12, dim=8, num_heads=2, encoder_layers=1, decoder_layers=1)).eval()
    with pytest.raises(ArgumentError, match="limits: expected at least 1"):
        follow(model, [3], 0, **RULES)
    with pytest.raises(ArgumentError, match="sources: expected at least one token"):
        follow(model, [], 5, **RULES)
