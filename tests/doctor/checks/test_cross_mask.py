"""Whose padding cross attention hides."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded


class OfTheTarget(Cross):
    """Both masks: True = a real token."""

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        tgt_padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> Tensor:
        return self.attend(x, memory, None if tgt_padding_mask is None else tgt_padding_mask[:, None, None])


class OfTheMemory(Cross):
    """Both masks: True = a real token."""

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        tgt_padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> Tensor:
        allowed = None if memory_padding_mask is None else memory_padding_mask[:, None, None]
        out = self.attend(x, memory, allowed)
        return out if tgt_padding_mask is None else out * tgt_padding_mask[..., None]


class Decoder(nn.Module):
    """x_mask goes to both attentions where `swapped`."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.swapped = swapped
        self.own, self.cross = Attention(), Cross()

    def forward(
        self, x: Tensor, memory: Tensor, x_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        x = x + self.own(x, padding_mask=x_mask)
        return x + self.cross(x, memory, x_mask if self.swapped else memory_mask)


def test_the_padding_of_the_queries_on_the_keys() -> None:
    finding = one("cross_mask", seeded(OfTheTarget))
    assert (finding.name, finding.severity) == ("cross-mask", "bug")
    assert finding.evidence.startswith("tgt_padding_mask")
    assert finding.numbers["hidden"] < 1e-6 < finding.numbers["seen"]


def test_a_decoder_that_hands_on_the_wrong_one() -> None:
    finding = one("cross_mask", seeded(Decoder, swapped=True))
    assert finding.evidence.startswith("x_mask")


def test_healthy_ones() -> None:
    assert found("cross_mask", seeded(OfTheMemory)) == []
    assert found("cross_mask", seeded(Decoder, swapped=False)) == []
    assert found("cross_mask", seeded(Cross)) == []
    assert found("cross_mask", nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)) == []
    with pytest.raises(NotChecked, match="no memory"):
        found("cross_mask", seeded(Attention))


class Flow(Cross):
    """c: the passage, and q: the question, each with a mask, True = a real token."""

    def forward(self, c: Tensor, q: Tensor, c_mask: Tensor | None = None, q_mask: Tensor | None = None) -> Tensor:
        out = self.attend(c, q, None if q_mask is None else q_mask[:, None, None])
        return out if c_mask is None else out * c_mask[..., None]


def test_a_mask_named_after_the_memory_is_of_the_memory() -> None:
    """Even where the memory is called q, as a question is."""
    assert found("cross_mask", seeded(Flow)) == []
