"""Text that attends to the images before it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Cross, found, one, seeded


class Images(Cross):
    """media_locations: [B, Q], True where the image is inserted"""

    def forward(self, x: Tensor, memory: Tensor, media_locations: Tensor | None = None) -> Tensor:
        if media_locations is None:
            return self.attend(x, memory, None)
        seen = (media_locations.cumsum(1) > 0)[:, None, :, None]
        return self.shown(self.attend(x, memory, seen), seen[:, 0])

    def shown(self, out: Tensor, seen: Tensor) -> Tensor:
        return out * seen


class EvenWeights(Images):
    """Before the first image all keys have the same finite fill."""

    def shown(self, out: Tensor, seen: Tensor) -> Tensor:
        return out


class DoesNotRead(Images):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return super().attend(x, torch.ones_like(memory), allowed)


def test_tokens_before_the_first_image() -> None:
    finding = one("media_before", seeded(EvenWeights))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert "the 2 tokens before it change with the image" in finding.evidence
    assert found("media_before", seeded(Images)) == []
    with pytest.raises(NotChecked, match="no token attends"):
        found("media_before", seeded(DoesNotRead))
    with pytest.raises(NotChecked, match="not told"):
        found("media_before", seeded(Cross))


class Several(Cross):
    """x: [B, L, M], media: [B, images, tokens, M], media_locations: [B, L]; each token sees the image before it."""

    first = 1

    def forward(self, x: Tensor, media: Tensor, media_locations: Tensor | None = None) -> Tensor:
        if media_locations is None:
            return self.attend(x, media.flatten(1, 2), None)
        at = media_locations.cumsum(1)[:, :, None]
        number = torch.arange(media.shape[1]).repeat_interleave(media.shape[2]) + self.first
        out = self.attend(x, media.flatten(1, 2), (at == number)[:, None])
        return out.masked_fill(at == 0, 0.0)


class TakesTheNext(Several):
    """x: [B, L, M], media: [B, images, tokens, M], media_locations: [B, L]; images are counted from 0."""

    first = 0


def test_a_token_behind_an_image_that_sees_the_next_one() -> None:
    finding = one("media_before", seeded(TakesTheNext))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert "the second image changes tokens" in finding.evidence
    assert found("media_before", seeded(Several)) == []
