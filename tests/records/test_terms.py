"""The terms of a row: its weights come out of them, and the numbers are those of the call."""

from __future__ import annotations

import itertools

import pytest
import torch

from headwise.errors import ArgumentError
from headwise.records import AttentionRecord
from headwise.records.terms import head_row
from tests.viewer.conftest import CASES, record


@pytest.mark.parametrize("name", CASES)
def test_the_weights_of_every_row_come_out_of_its_terms(name: str) -> None:
    torch.manual_seed(1)
    seen: AttentionRecord = CASES[name]()
    batch, heads, q_len, _ = seen.shape
    weights, scores = seen.weights().double(), seen.scores().double()
    near = 1e-5 if name == "large scores" else 1e-6  # in float32 they have fewer digits
    for b, h, row in itertools.product(range(batch), range(heads), range(q_len)):
        terms = head_row(seen, b, h, row)
        assert terms.q.dtype == terms.k.dtype == torch.float64
        torch.testing.assert_close(terms.weights, weights[b, h, row], rtol=0, atol=near)
        assert terms.allowed.tolist() == (scores[b, h, row] != -torch.inf).tolist()
        assert bool(terms.k.isfinite().all())


def test_the_numbers_are_those_of_the_call() -> None:
    seen = record(4, 2, sinks=torch.tensor([1.0, 2.0, 3.0, -torch.inf]), softcap=5.0, scale=0.25)
    terms = head_row(seen, 0, 2, 7)
    assert (terms.scale, terms.softcap, terms.sink, terms.bias) == (0.25, 5.0, 3.0, None)
    torch.testing.assert_close(terms.q, seen.q[0, 2, 7].double(), rtol=0, atol=0)
    torch.testing.assert_close(terms.k, seen.k[0, 1].double(), rtol=0, atol=0)
    assert head_row(seen, 0, 3, 7).sink is None


@pytest.mark.parametrize(("place", "message"), [((1, 0, 0), "example"), ((0, 2, 0), "head"), ((0, 0, -1), "row")])
def test_what_is_not_there_is_refused(place: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{message} must lie in 0 … \d"):
        head_row(record(), *place)
