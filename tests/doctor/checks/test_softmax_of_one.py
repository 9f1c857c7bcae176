"""Softmaxes over an axis of one element, in the steps of decoders, and how these are called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import Patient
from tests.doctor.checks.specimens import found, one, seeded


class Step(nn.Module):
    """One step of a decoder with additive attention; nothing is said of shapes."""

    axis = 1

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.of_query, self.of_keys, self.score = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 1)
        self.gru, self.out = nn.GRU(40, 24, batch_first=True), nn.Linear(24, 50)

    def forward(self, token: Tensor, hidden: Tensor, encoder_outputs: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.score(torch.tanh(self.of_query(hidden.transpose(0, 1)) + self.of_keys(encoder_outputs)))
        context = energy.softmax(self.axis).mT @ encoder_outputs  # [B, 1, H] of [B, K, 1] and [B, K, H]
        out, hidden = self.gru(torch.cat((self.words(token), context), -1), hidden)
        return self.out(out), hidden


class OverOne(Step):
    """One step of a decoder."""

    axis = -1


class SequenceFirst(nn.Module):
    """decoder_state (B, H), encoder_outputs (S, B, H)."""

    def __init__(self) -> None:
        super().__init__()
        self.of_keys, self.out = nn.Linear(24, 24), nn.Linear(48, 24)

    def forward(self, decoder_state: Tensor, encoder_outputs: Tensor) -> Tensor:
        weights = (self.of_keys(encoder_outputs) * decoder_state).sum(-1).softmax(0)  # [S, B]
        context = torch.einsum("sb,sbh->bh", weights, encoder_outputs)
        return self.out(torch.cat([context, decoder_state], -1)).tanh()


class LeftOver(nn.Module):
    """Weights of one head over heads are computed, and never read, as in SAM 2."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 1, 16)).unbind(2)  # [B, N, 1, D]
        self.weights = (q / 4 @ k.mT).softmax(-1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        y = (q @ k.mT / 4).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Reduced(LeftOver):
    """All tokens are pooled to one key and one value, as by a spatial reduction of a small map."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = k.mean(1, keepdim=True), v.mean(1, keepdim=True)
        return self.out((q @ k.mT / 4).softmax(-1) @ v + q)


class Summed(LeftOver):
    """The scores [B, K, 1] of additive attention, beside a standard attention."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        y = (q @ k.mT / 4).softmax(-1) @ v
        weights = (y @ self.out.weight[:1].mT).softmax(-1)
        return self.out(y + weights.mT @ y)


@pytest.mark.parametrize(("module", "names"), [(LeftOver, []), (Reduced, []), (Summed, ["softmax-axis"])])
def test_an_axis_of_one_element_beside_an_attention(module: type[nn.Module], names: list[str]) -> None:
    assert [x.name for x in found("softmax_of_one", seeded(module))] == names


def test_every_weight_is_1() -> None:
    finding = one("softmax_of_one", seeded(OverOne))
    assert (finding.name, finding.severity, finding.numbers["axis"]) == ("softmax-axis", "bug", -1)
    assert "every weight is 1" in finding.evidence
    assert [x.name for x in headwise.diagnose(seeded(OverOne)).bugs] == ["softmax-axis"]


@pytest.mark.parametrize("module", [Step, SequenceFirst])
def test_a_healthy_step(module: type[nn.Module]) -> None:
    assert found("softmax_of_one", seeded(module)) == []
    assert headwise.diagnose(seeded(module)).bugs == ()


def test_how_a_step_is_called() -> None:
    described = "\n".join(Patient(seeded(Step)).interface.describe())
    assert "[1, batch, width] for the one query, and a memory [batch, length, width]" in described
    described = "\n".join(Patient(seeded(SequenceFirst)).interface.describe())
    assert "[batch, width] for the one query, and a memory [length, batch, width]" in described
