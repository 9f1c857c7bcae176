"""Masked keys that keep a weight, where queries and keys are the same tokens, or the output is pooled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, found, one, seeded


class Padded(Attention):
    """padding_mask: [B, N], True = a real token."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if padding_mask is None else padding_mask[:, None, None])


class ClearsTokens(Padded):
    """padding_mask: [B, N], True = a real token."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = x if padding_mask is None else x * padding_mask[..., None]
        return self.attend(x, x, None)


class Pool(nn.Module):
    """lengths: [B], the number of real tokens of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.query = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(x.shape[1]) < lengths[:, None]
        weights = self.hidden(self.key(x) @ self.query / 4, real).softmax(-1)
        return self.out((weights[:, None] @ x)[:, 0])

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real, -torch.inf)


class PoolOfZeros(Pool):
    """lengths: [B], the number of real tokens of each example."""

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores * real


@pytest.mark.parametrize("kind", [ClearsTokens, PoolOfZeros])
def test_padding_that_keeps_a_weight(kind: type[nn.Module]) -> None:
    finding = one("masked_weight", seeded(kind))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")


@pytest.mark.parametrize("kind", [Padded, Pool])
def test_padding_that_is_hidden(kind: type[nn.Module]) -> None:
    assert found("masked_weight", seeded(kind)) == []
