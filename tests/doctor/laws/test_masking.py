"""Masks that are forgotten on some path, or act on the keys of another sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, Causal, Cross, found, one, seeded


class Ignores(Attention):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is not None:
            scores.masked_fill(~allowed, -1e9)  # a new tensor, that nobody takes
        return scores


class ForgetsWithWeights(Attention):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, need_weights: bool = False) -> Any:
        out = self.attend(x, x, None if need_weights else self.both(None, padding_mask))
        if need_weights:
            return out, self.score(self.split(self.q(x)), self.split(self.k(x))).softmax(-1)
        return out


class ForgetsInTraining(Attention):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if self.training else super().fill(scores, allowed)


class OneOrTheOther(Attention):
    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        return super().both(mask, None) if mask is not None else super().both(None, padding_mask)


class IgnoresItsMemorysMask(Cross):
    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, memory, None)


class OwnCausalMask(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return super().attend(x, memory, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())


def test_a_mask_that_changes_nothing() -> None:
    for module in (Ignores, OwnCausalMask):
        findings = found("masking", seeded(module))
        assert {(x.name, x.severity) for x in findings} == {("mask-ignored", "bug")}
        assert sorted(x.evidence.split(" changes nothing")[0] for x in findings) == ["mask", "padding_mask"]
    assert one("masking", seeded(IgnoresItsMemorysMask)).evidence.startswith("memory_mask changes nothing")


def test_a_path_that_forgets_it() -> None:
    weights = one("masking", seeded(ForgetsWithWeights))
    assert (weights.name, weights.severity) == ("mask-ignored", "bug")
    assert "padding_mask has no effect with need_weights=True" in weights.evidence
    assert weights.numbers["change"] > 0.01
    training = found("masking", seeded(ForgetsInTraining))
    assert training
    assert all("in train mode" in x.evidence for x in training)
    assert "padding_mask has no effect if mask is passed" in one("masking", seeded(OneOrTheOther)).evidence


def test_healthy_ones() -> None:
    for module in (seeded(Attention, dropout=0.1), seeded(Cross), nn.MultiheadAttention(16, 4, dropout=0.1)):
        assert found("masking", module) == []
    with pytest.raises(NotApplicable, match="no mask"):
        found("masking", seeded(Causal))


class Operator(nn.Module):
    """It has no parameters: its callers choose its mask, or its own."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf).softmax(-1) @ value


def test_a_mask_that_a_causal_operator_leaves_out_is_a_risk() -> None:
    assert one("masking", Operator()).severity == "risk"


class TextForVideo(Cross):
    """Its queries' own mask is for another part of the model."""

    def forward(
        self, src_vid: Tensor, src_txt: Tensor, src_vid_mask: Tensor | None = None, src_txt_mask: Tensor | None = None
    ) -> Tensor:
        return self.attend(src_vid, src_txt, None if src_txt_mask is None else src_txt_mask[:, None, None].bool())


class DetrDecoder(nn.Module):
    """memory_key_padding_mask: [B, K] bool, True = padding. Learned queries read a memory."""

    passes_mask = True

    def __init__(self) -> None:
        super().__init__()
        self.places, self.norm = nn.Parameter(torch.randn(5, 16)), nn.LayerNorm(16)
        self.layers = nn.ModuleList([nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(4)])

    def forward(self, memory: Tensor, memory_key_padding_mask: Tensor | None = None) -> Tensor:
        places = self.places.expand(len(memory), -1, -1)
        mask = memory_key_padding_mask if self.passes_mask else None
        x = torch.zeros_like(places)
        for own, cross in zip(self.layers[::2], self.layers[1::2], strict=True):
            x = self.norm(x + own(x + places, x + places, x)[0])
            x = self.norm(x + cross(x + places, memory, memory, key_padding_mask=mask)[0])
        return x


class DropsItsMask(DetrDecoder):
    """memory_key_padding_mask: [B, K] bool, True = padding."""

    passes_mask = False


def test_a_mask_of_what_is_not_here_and_one_that_is_dropped() -> None:
    assert found("masking", seeded(TextForVideo)) == []
    assert headwise.diagnose(seeded(DetrDecoder)).healthy
    assert [x.name for x in headwise.diagnose(seeded(DropsItsMask)).bugs] == ["mask-ignored"]


class OfASignal(nn.Module):
    """wave: [B, samples], lengths: [B] in samples, or None."""

    step = 4

    def __init__(self) -> None:
        super().__init__()
        self.frames, self.attention = nn.Conv1d(1, 16, 4, stride=4), Attention()

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = self.frames(wave[:, None]).mT
        if lengths is None:
            return self.attention.attend(x, x, None)
        real = torch.arange(x.shape[1]) < lengths[:, None] // self.step
        return self.attention.attend(x, x, real[:, None, None])


class CountsSamples(OfASignal):
    """Lengths of samples are compared with frames: nothing is ever padding."""

    step = 1


def test_lengths_of_a_signal() -> None:
    assert one("masking", seeded(CountsSamples)).severity == "bug"
    assert found("masking", seeded(OfASignal)) == []


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
    """c: the passage, and q: the question, each with a mask, True = a real token."""

    def forward(self, c: Tensor, q: Tensor, c_mask: Tensor | None = None, q_mask: Tensor | None = None) -> Tensor:
        out = self.attend(c, q, None if q_mask is None else q_mask[:, None, None])
        return out if c_mask is None else out * c_mask[..., None]


def test_the_padding_of_the_queries_on_the_keys_of_a_memory() -> None:
    finding = next(x for x in found("masking", seeded(Decoder, swapped=True)) if x.name == "cross-mask")
    assert finding.severity == "bug"
    assert finding.evidence.startswith("x_mask")
    assert finding.numbers["hidden"] < 1e-6 < finding.numbers["seen"]
    for module in (seeded(Decoder, swapped=False), nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)):
        assert found("masking", module) == []
    assert found("masking", seeded(Flow)) == []  # the memory may be called q, as a question is
