"""The line of the user's code that each thing noted stands in."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from tests.doctor.reading.following import N, follow, inputs


def test_the_line_of_every_product_and_softmax_is_known() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        scores = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -1e9)
        weights = scores.softmax(-1)
        return torch.einsum("bqk,bkd->bqd", weights, v)

    run = follow(attend, *inputs(3))
    lines, first = inspect.getsourcelines(attend)
    places = [seed.where for seed in run.seeds if seed.kind == "product"] + [run.softmaxes[0].where]
    places += [step.where for step in run.steps if step.name == "masked_fill"]
    expected = ["q @ k.mT", "torch.einsum", "scores.softmax", "masked_fill"]
    assert len(places) == len(expected)
    for place, code in zip(places, expected, strict=True):
        assert place.file == __file__
        assert code in place.code
        assert lines[place.line - first].strip() == place.code
