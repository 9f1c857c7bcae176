"""Masks and biases that models pass on: recognised once, and again where they hold something else."""

from __future__ import annotations

import pytest
import torch

from headwise import masks
from headwise.capture.masks import Recognised

N = 40
SHAPE = (1, 2, N, N)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inference", [False, True])
def test_a_cell_that_is_written_without_a_trace_is_seen(dtype: torch.dtype, inference: bool) -> None:
    recognised, allowed = Recognised(), torch.ones(1, 1, N, N, dtype=torch.bool).tril()
    with torch.inference_mode(inference):
        given = allowed.clone() if dtype == torch.bool else torch.zeros(1, 1, N, N, dtype=dtype)
        given.masked_fill_(~allowed, 0 if dtype == torch.bool else -torch.inf)

    def found() -> masks.Mask | None:
        return (recognised.mask if dtype == torch.bool else recognised.additive)(given, SHAPE)[0]

    before = found()
    assert before == masks.causal(offset=0)
    assert found() is before
    with torch.inference_mode(inference):
        given.data[0, 0, 7, 5] = 0 if dtype == torch.bool else -torch.inf
    allowed[0, 0, 7, 5] = False
    after = found()
    assert torch.equal(after.to_bool(N), allowed)
