"""Which value each weight is multiplied with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded
from tests.doctor.checks.styles import Plain, assert_at


class Sink(Plain):
    """A learned score per head, last in the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(4))

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        sinks = self.sinks.view(1, -1, 1, 1).expand(len(q), -1, q.shape[2], 1)
        weights = self.joined(self.score(q, k), sinks).softmax(-1)
        return self.out(self.merge(self.dropped(weights) @ v))

    def joined(self, scores: Tensor, sinks: Tensor) -> Tensor:
        return torch.cat([scores, sinks], -1)

    def dropped(self, weights: Tensor) -> Tensor:
        return weights[..., :-1]


class SinkFirst(Sink):
    def joined(self, scores: Tensor, sinks: Tensor) -> Tensor:
        return torch.cat([sinks, scores], -1)

    def dropped(self, weights: Tensor) -> Tensor:
        return weights[..., 1:]


class FirstKeyDropped(Sink):
    def dropped(self, weights: Tensor) -> Tensor:
        return weights[..., 1:]


class LastKeyDropped(SinkFirst):
    def dropped(self, weights: Tensor) -> Tensor:
        return weights[..., :-1]


class OtherEnds(Plain):
    """The first values are dropped, and the last scores."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(self.score(q, k)[..., :-2].softmax(-1) @ v[:, :, 2:]))


@pytest.mark.parametrize(("kind", "offset"), [(FirstKeyDropped, -1), (LastKeyDropped, 1), (OtherEnds, 2)])
def test_weights_of_other_keys(kind: type[nn.Module], offset: int) -> None:
    finding = one("weights_misaligned", seeded(kind))
    assert (finding.name, finding.severity, finding.numbers["offset"]) == ("weights-misaligned", "bug", offset)
    assert ("earlier" if offset < 0 else "later") in finding.evidence
    if kind is FirstKeyDropped:
        assert_at(finding, Sink, "self.dropped(weights) @ v")


@pytest.mark.parametrize("kind", [Sink, SinkFirst, Attention, Causal, Cross])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found("weights_misaligned", seeded(kind)) == []
