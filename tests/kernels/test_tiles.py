"""Tiles cover exactly what a mask allows."""

from __future__ import annotations

import pytest
import torch

import headwise
from headwise import masks


@pytest.mark.parametrize("offset", [None, 0, 1, 2])
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_documents_at_any_offset(offset: int | None, is_causal: bool) -> None:
    torch.manual_seed(0)
    mask = masks.documents([0, 0, 1, 1], offset=offset)
    mask = mask & masks.causal(offset=offset) if is_causal else mask
    q, k, v = torch.randn(1, 1, 2, 8), torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    expected = headwise.attention(q, k, v, mask=mask, kernel="reference")
    torch.testing.assert_close(headwise.attention(q, k, v, mask=mask, kernel="tiled"), expected)
