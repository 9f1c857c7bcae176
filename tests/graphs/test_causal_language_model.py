"""The graph of a model that goes on with a text: step by step it gives what the model gives at once."""

from __future__ import annotations

from typing import Any

import torch

from tests.export import tiny


@torch.no_grad()
def test_any_parts_of_a_text_give_the_logits_of_the_whole() -> None:
    task: Any = tiny.causal()
    (graph,) = task.graphs(["ant bee cat", "dog elk"])
    ids = torch.tensor([[1, 9, 8, 2, 5], [1, 7, 2, 0, 3]])
    expected = task.model(ids)
    for sizes in ([5], [1] * 5, [3, 1, 1]):
        past = [torch.empty(2, value.axes[1], 0, value.axes[3]) for value in graph.inputs[1:]]  # type: ignore[arg-type]
        logits = []
        for part in ids.split(sizes, 1):
            found, *past = graph.module(part, *past)
            logits.append(found)
        torch.testing.assert_close(torch.cat(logits, 1), expected)


def test_texts_too_short_to_have_a_past_are_no_examples() -> None:
    (graph,) = tiny.causal().graphs(["a", "ant bee cat dog"])
    assert min(min(x.shape) for x in graph.examples[0]) >= 2
    assert {x[1].shape[2] for x in graph.examples} > {0}
