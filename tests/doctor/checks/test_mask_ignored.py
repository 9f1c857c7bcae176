"""Masks that are forgotten on some path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded


class Ignores(Attention):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is not None:
            scores.masked_fill(~allowed, -1e9)  # a new tensor, that nobody takes
        return scores


class IgnoresPadding(Attention):
    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        return super().both(mask, None)


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


def test_a_mask_that_changes_nothing() -> None:
    findings = found("mask_ignored", seeded(Ignores))
    assert {(x.name, x.severity) for x in findings} == {("mask-ignored", "bug")}
    assert sorted(x.evidence.split(" changes nothing")[0] for x in findings) == ["mask", "padding_mask"]
    finding = one("mask_ignored", seeded(IgnoresPadding))
    assert finding.evidence.startswith("padding_mask changes nothing")
    assert one("mask_ignored", seeded(IgnoresItsMemorysMask)).evidence.startswith("memory_mask changes nothing")


def test_a_path_that_forgets_it() -> None:
    weights = one("mask_ignored", seeded(ForgetsWithWeights))
    assert (weights.name, weights.severity) == ("mask-ignored", "bug")
    assert "padding_mask has no effect with need_weights=True" in weights.evidence
    assert weights.numbers["change"] > 0.01
    training = found("mask_ignored", seeded(ForgetsInTraining))
    assert training
    assert all("in train mode" in x.evidence for x in training)


def test_two_masks_of_which_one_wins() -> None:
    finding = one("mask_ignored", seeded(OneOrTheOther))
    assert "padding_mask has no effect if mask is passed too" in finding.evidence


def test_healthy_ones() -> None:
    for module in (seeded(Attention, dropout=0.1), seeded(Cross), nn.MultiheadAttention(16, 4, dropout=0.1)):
        assert found("mask_ignored", module) == []
    with pytest.raises(NotChecked, match="no mask"):
        found("mask_ignored", seeded(Causal))


class Named(Attention):
    """padding: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.attend(x, x, self.both(None, padding))


class NamedAndIgnored(Named):
    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        return None


def test_an_argument_named_like_one_of_the_doctor_s_own() -> None:
    assert found("mask_ignored", seeded(Named)) == []
    assert one("mask_ignored", seeded(NamedAndIgnored)).evidence.startswith("padding changes nothing")


class CellsAndKeys(Attention):
    """Queries, keys and values apart; both masks are for the keys."""

    ignores = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        q, k, v = self.split(self.q(query)), self.split(self.k(key)), self.split(self.v(value))
        cells = None if self.ignores else attn_mask
        return self.out(self.merge(self.normalise(self.fill(self.score(q, k), self.both(cells, key_mask))) @ v))


class IgnoresCells(CellsAndKeys):
    ignores = True


class TextForVideo(Cross):
    """Its queries' own mask is for another part of the model."""

    def forward(
        self, src_vid: Tensor, src_txt: Tensor, src_vid_mask: Tensor | None = None, src_txt_mask: Tensor | None = None
    ) -> Tensor:
        return self.attend(src_vid, src_txt, None if src_txt_mask is None else src_txt_mask[:, None, None].bool())


def test_a_mask_is_not_excused_because_another_works() -> None:
    assert one("mask_ignored", seeded(IgnoresCells)).evidence.startswith("attn_mask changes nothing")
    assert found("mask_ignored", seeded(CellsAndKeys)) == []
    assert found("mask_ignored", seeded(TextForVideo)) == []


class Operator(nn.Module):
    """It has no parameters: its callers choose its mask, or its own."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
        elif attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        return scores.softmax(-1) @ value


class Documented(Operator):
    """If causal is set, attn_mask is ignored."""


def test_a_mask_that_a_causal_operator_leaves_out() -> None:
    assert one("mask_ignored", Operator()).severity == "risk"
    assert one("mask_ignored", Documented()).severity == "note"


class OwnCausalMask(Attention):
    """With parameters it is a bug: no caller can choose."""

    causal = True

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        if self.causal:
            allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return super().attend(x, memory, allowed)


def test_a_module_that_leaves_it_out() -> None:
    assert {x.severity for x in found("mask_ignored", seeded(OwnCausalMask))} == {"bug"}


class DetrDecoder(nn.Module):
    """memory_key_padding_mask: [B, K] bool, True = padding."""

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


def test_learned_queries_that_read_a_memory() -> None:
    """Its targets begin as 0, and each layer adds the same positions: neither is a mistake."""
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
    assert one("mask_ignored", seeded(CountsSamples)).severity == "bug"
    assert found("mask_ignored", seeded(OfASignal)) == []
