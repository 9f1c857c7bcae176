"""What a mask did to scores, on matrices that can be computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.reading.mask_cells import compare, fixed_fill, future, lost

INF = torch.inf
# Two examples, two heads, three queries and keys; every score is another one.
BEFORE = torch.arange(1.0, 37).view(2, 2, 3, 3) / 10
# Of example 0 the last key is hidden, of example 1 the last two: from every query.
HIDDEN = torch.tensor([[[[False, False, True]]], [[[False, True, True]]]])


def filled(where: Tensor, value: float) -> Tensor:
    return BEFORE.masked_fill(where, value)


@pytest.mark.parametrize(
    ("after", "kind", "numbers"),
    [
        (filled(HIDDEN, -INF), "right", {"value": -INF}),
        (filled(HIDDEN, -2000.0), "right", {"value": -2000}),
        (BEFORE - 2000 * HIDDEN, "right", {"step": -2000}),
        (BEFORE, "nothing", {}),
        (filled(~HIDDEN, -INF), "inverted", {}),
        (filled(HIDDEN.flip(0), -INF), "other example", {"place": (0, 0, 1)}),
        (filled(HIDDEN.mT, -INF), "queries", {}),
        (filled(HIDDEN | HIDDEN.mT, -INF), "elsewhere", {"cells": 8, "of": 36}),
        (filled(HIDDEN, 1e-9), "filled", {"value": 1e-9}),
        (BEFORE - 5 * HIDDEN, "lowered", {"step": -5}),
        (BEFORE + HIDDEN, "added", {"step": 1, "cells": 1}),
        (BEFORE + ~HIDDEN, "added", {"step": 1, "cells": 0}),
        (BEFORE * ~HIDDEN, "multiplied", {}),
        (BEFORE * torch.where(HIDDEN, 0.5, 1.0), "multiplied", {}),
        (BEFORE.flip(-1), "unclear", {}),
    ],
)
def test_what_a_mask_did(after: Tensor, kind: str, numbers: dict[str, object]) -> None:
    act = compare(BEFORE, after, HIDDEN)
    assert act.kind == kind
    for name, value in numbers.items():
        assert getattr(act, name) == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value)


def test_cells_of_its_own_mask() -> None:
    """Of what a module hides by itself, nothing may be opened, and nothing is expected."""
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    causal = filled(later, -INF)
    assert compare(causal, causal.masked_fill(HIDDEN, -INF), HIDDEN).kind == "right"
    act = compare(causal, filled(HIDDEN, -INF), HIDDEN)
    assert (act.kind, act.cells, act.of) == ("opened", 2, 12)  # key 1 for query 0 of example 0, in both heads
    assert compare(torch.full_like(BEFORE, -INF), BEFORE, HIDDEN).kind == "all"


def test_rows_of_padding_are_free() -> None:
    """Padding attends to itself, so that no row is empty: nobody reads it."""
    itself = HIDDEN & ~torch.eye(3, dtype=torch.bool)
    assert compare(BEFORE, filled(itself, -INF), HIDDEN).kind == "elsewhere"
    assert compare(BEFORE, filled(itself, -INF), HIDDEN, HIDDEN.mT).kind == "right"


def test_cells_of_one_matrix() -> None:
    hidden = torch.tensor([[False, True, True], [False, False, True], [False, False, False]])
    assert compare(BEFORE, filled(hidden.mT, -INF), hidden).kind == "transposed"


def test_weights_that_are_lost() -> None:
    weights = torch.tensor([[[[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]]])
    hidden = torch.tensor([False, False, True])
    taken = weights.masked_fill(hidden, 0.0)
    assert lost(weights, taken, hidden) == pytest.approx(0.4)
    assert lost(weights, taken / taken.sum(-1, keepdim=True), hidden) is None
    assert lost(weights, weights, hidden) is None


def test_fills() -> None:
    assert fixed_fill(torch.full((4,), -1e9)) == -1e9
    assert fixed_fill(torch.full((4,), torch.finfo(torch.float32).min)) is None
    assert fixed_fill(torch.tensor([-1e9, -2e9])) is None
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    assert future(filled(later, -5.0)) == -5
    assert future(filled(later, -INF)) is None
    assert future(BEFORE) is None
    assert future(torch.ones(2, 2, 3, 3)) is None
