"""Masks that are made of lengths, where the frame rate is halved first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class Speech(nn.Module):
    """feats: [B, T, n_mels], lengths: [B] number of frames"""

    def __init__(self, n_mels: int = 12) -> None:
        super().__init__()
        self.pairs = nn.Linear(2 * n_mels, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, feats: Tensor, lengths: Tensor) -> Tensor:
        half = feats.shape[1] // 2
        x = self.pairs(feats[:, : 2 * half].unflatten(1, (half, 2)).flatten(2))
        real = torch.arange(half) < (lengths // 2).clamp(min=1)[:, None]
        return x + self.attention(x, x, x, key_padding_mask=self.mask(real), need_weights=False)[0]

    def mask(self, real: Tensor) -> Tensor:
        return ~real


class HidesTheFrames(Speech):
    """feats: [B, T, n_mels], lengths: [B] number of frames"""

    def mask(self, real: Tensor) -> Tensor:
        return real


def test_padding_is_attended_to_and_frames_are_not() -> None:
    finding = one("length_mask", seeded(HidesTheFrames))
    assert (finding.name, finding.severity) == ("mask-polarity", "bug")
    assert "with lengths = 16 of 32 tokens, token 28 changes the first output" in finding.evidence
    assert found("length_mask", seeded(Speech)) == []


@pytest.mark.parametrize("module", [Attention, Causal])
def test_without_lengths(module: type[nn.Module]) -> None:
    with pytest.raises(NotApplicable):
        found("length_mask", seeded(module))
