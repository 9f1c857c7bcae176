"""The two graphs of a model that writes: step by step they give what the model gives at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.graphs.graph import Graph
from headwise.models.encoder_decoder import EncoderDecoder
from tests.export import tiny
from tests.tasks import problems

KINDS: list[dict[str, Any]] = [
    {"positions": "rope"},
    {"positions": "sinusoidal", "copies": True},
    {"positions": "learned", "shared_vocabulary": False, "layers": 2},
]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def made(request: pytest.FixtureRequest) -> tuple[EncoderDecoder, Graph, Graph]:
    given = {**tiny.SMALL, "source": "source", "target": "target", **request.param}
    task = tiny.made(tiny.Translate, problems.copied(40), **given)
    encoder, decoder = task.graphs(["ant bee cat", "dog"])
    return task.model, encoder, decoder


def run(encoder: Graph, decoder: Graph, source: Tensor, padding: Tensor, parts: list[Tensor]) -> Tensor:
    """Logits of the parts of a target, one after another."""
    found = dict(zip((value.name for value in encoder.outputs), encoder.module(source, padding), strict=True))
    known = {"source_ids": source, "source_real": padding, **found}
    keys = found["cross_keys_0"]
    known |= {value.name: keys[:, :, :0] for value in decoder.inputs if value.name.startswith("past_")}
    logits = []
    for ids in parts:
        outputs = decoder.module(ids, *(known[value.name] for value in decoder.inputs[1:]))
        logits.append(outputs[0])
        known |= {f"past_{value.name}": each for value, each in zip(decoder.outputs[1:], outputs[1:], strict=True)}
    return torch.cat(logits, 1)


@torch.no_grad()
def test_any_parts_of_a_target_give_the_logits_of_the_whole(made: tuple[EncoderDecoder, Graph, Graph]) -> None:
    model, encoder, decoder = made
    source, target = torch.tensor([[1, 9, 8, 2], [1, 7, 2, 0]]), torch.tensor([[1, 4, 5, 6, 7, 3], [1, 3, 3, 4, 9, 8]])
    padding = torch.tensor([[True] * 4, [True, True, True, False]])
    expected = model(source, target, padding)
    for sizes in ([6], [1] * 6, [1, 3, 2]):
        torch.testing.assert_close(run(encoder, decoder, source, padding, list(target.split(sizes, 1))), expected)


def test_the_memory_itself_is_given_where_it_is_copied_from_and_nowhere_else(
    made: tuple[EncoderDecoder, Graph, Graph],
) -> None:
    model, encoder, decoder = made
    copies = model.copy is not None
    assert ("memory" in {value.name for value in encoder.outputs}) == copies
    assert ({"memory", "source_ids"} <= {value.name for value in decoder.inputs}) == copies


def test_the_first_steps_of_the_examples_have_no_past(made: tuple[EncoderDecoder, Graph, Graph]) -> None:
    _, _, decoder = made
    place = [value.name for value in decoder.inputs].index("past_keys_0")
    assert {example[place].shape[2] for example in decoder.examples} == {0, 3}
    assert min(min(axis for axis in x.shape) for x in decoder.examples[0]) >= 2


def test_without_real_texts_the_examples_are_random() -> None:
    encoder, decoder = tiny.translator().graphs()
    assert len(encoder.examples) == 2
    assert len(decoder.examples) == 4
