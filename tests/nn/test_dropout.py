"""Dropout as a module: when it drops, whose draws it takes, and the same draws where a pass runs twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headwise.errors import ArgumentError
from headwise.native import dropout as native
from headwise.nn.dropout import Dropout


def test_nothing_is_dropped_in_eval_mode_or_with_probability_0() -> None:
    x = torch.ones(1000)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert not torch.equal(Dropout(0.5)(x), x)


def test_the_native_kernel_draws_where_it_can_and_torch_elsewhere() -> None:
    for dtype, theirs in ((torch.float32, lambda x: native.dropout(x, 0.3)), (torch.float64, nn.Dropout(0.3))):
        x = torch.randn(1000, dtype=dtype)
        torch.manual_seed(1)
        expected = theirs(x)
        torch.manual_seed(1)
        assert torch.equal(Dropout(0.3)(x), expected), dtype


def test_compiled_code_has_the_dropout_of_torch() -> None:
    x, run = torch.ones(10_000), torch.compile(Dropout(0.25), backend="eager", fullgraph=True)
    assert abs((run(x) != 0).float().mean() - 0.75) < 0.013  # 3 standard deviations


def test_a_checkpointed_pass_drops_the_same_numbers_when_it_is_computed_again() -> None:
    layer, x = nn.Sequential(nn.Linear(8, 8), Dropout(0.5), nn.Linear(8, 8)), torch.randn(20, 8, requires_grad=True)
    found = []
    for run in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        torch.manual_seed(2)
        found.append(torch.autograd.grad(run(x).square().sum(), [x, *layer.parameters()]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_probability_that_cannot_be(p: float) -> None:
    with pytest.raises(ArgumentError, match="dropout"):
        Dropout(p)
