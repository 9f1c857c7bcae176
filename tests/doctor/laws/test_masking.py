"""Masks that change nothing, or act on the keys of another sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, Causal, Cross, found, seeded

LAW = "masking"


class OneOrTheOther(Attention):
    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        return super().both(mask, None) if mask is not None else super().both(None, padding_mask)


class IgnoresItsMemorysMask(Cross):
    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, memory, None)


class Operator(nn.Module):
    """It has no parameters: its callers choose its mask, or its own."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize(
    ("module", "severity", "words"),
    [
        (seeded(Attention, fill=lambda scores, _: scores), "bug", "mask changes nothing"),
        (seeded(IgnoresItsMemorysMask), "bug", "memory_mask changes nothing"),
        (Operator(), "risk", "attn_mask changes nothing"),
        (seeded(OneOrTheOther), "bug", "padding_mask has no effect if mask is passed"),
    ],
)
def test_a_mask_that_is_forgotten(module: nn.Module, severity: str, words: str) -> None:
    findings = found(LAW, module)
    assert findings
    for finding in findings:
        assert (finding.name, finding.severity) == ("mask-ignored", severity)
        assert words in finding.evidence


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


class Flow(Cross):
    """c: the passage, and q: the question, each with a mask, True = a real token: the memory may be called q."""

    def forward(self, c: Tensor, q: Tensor, c_mask: Tensor | None = None, q_mask: Tensor | None = None) -> Tensor:
        out = self.attend(c, q, None if q_mask is None else q_mask[:, None, None])
        return out if c_mask is None else out * c_mask[..., None]


def test_the_padding_of_the_queries_on_the_keys_of_a_memory() -> None:
    finding = next(x for x in found(LAW, seeded(Decoder, swapped=True)) if x.name == "cross-mask")
    assert finding.severity == "bug"
    assert finding.evidence.startswith("x_mask")


def test_healthy_ones() -> None:
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
    for module in (seeded(Attention, dropout=0.1), Flow, seeded(Decoder, swapped=False), layer):
        assert found(LAW, module) == []
    with pytest.raises(NotApplicable, match="no mask"):
        found(LAW, Causal)
