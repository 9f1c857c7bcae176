"""Keys in parts, and how these are merged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded
from tests.doctor.laws.styles import Plain

torch.manual_seed(0)  # for the modules that are made here


class Parts(Attention):
    """Two keys at a time; merged by the shares of the sums of exponentials."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        outs, sums = [], []
        for i in range(0, k.shape[2], 2):
            scores = self.score(q, k[:, :, i : i + 2])
            outs.append(scores.softmax(-1) @ v[:, :, i : i + 2])
            sums.append(scores.logsumexp(-1, keepdim=True))
        return self.out(self.merge(self.together(outs, torch.cat(sums, -1))))

    def together(self, outs: list[Tensor], sums: Tensor) -> Tensor:
        return (torch.stack(outs, -1) * sums.softmax(-1)[..., None, :]).sum(-1)


class TwoKinds(Attention):
    """Keys of another projection beside the usual ones, added on purpose (IP-Adapter)."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.k2, self.v2 = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, k2, v2 = (self.split(w(x)) for w in (self.q, self.k, self.v, self.k2, self.v2))
        out = self.score(q, k).softmax(-1) @ v + self.score(q, k2[:, :, :2]).softmax(-1) @ v2[:, :, :2]
        return self.out(self.merge(out))


class Online(Plain):
    """Blocks of keys: a running maximum, and one division at the end. Few tokens are a single block of 8."""

    def __init__(self, *sizes: int, block: int = 2, **parts: Any) -> None:
        super().__init__(*sizes, **parts)
        self.block_size = block
        self.sink = nn.Parameter(torch.randn(1, 4, 1, 1))

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        top, total, out = torch.full_like(q[..., :1], -torch.inf), torch.zeros_like(q[..., :1]), torch.zeros_like(q)
        blocks = zip(k.split(self.block_size, 2), v.split(self.block_size, 2), strict=True)
        for number, (keys, values) in enumerate(blocks):
            scores = self.score(q, keys) * self.factor(number)
            above = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, less = self.power(scores - above), self.power(top - above)
            total = self.kept(total, less) + weights.sum(-1, keepdim=True)
            out = self.rescaled(out, less) + weights @ values
            top = above
        return self.out(self.merge(out / self.divisor(total, top)))

    factor, power = staticmethod(lambda number: 1.0), staticmethod(torch.exp)
    kept = rescaled = staticmethod(lambda total, less: total * less)

    def divisor(self, total: Tensor, top: Tensor) -> Tensor:
        return total


class WithASink(Online):
    """A learned number that only the sum counts."""

    def divisor(self, total: Tensor, top: Tensor) -> Tensor:
        return total + (self.sink - top).exp()


class QueriesInBlocks(Online):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return torch.cat([super(QueriesInBlocks, self).attend(part, memory, allowed) for part in x.split(2, 1)], 1)


def wide(kind: type[nn.Module], **parts: Any) -> nn.Module:
    return seeded(kind, 32, 4, **parts)


BROKEN = [
    wide(Parts, together=lambda outs, sums: torch.stack(outs).mean(0)),
    wide(
        Parts, together=lambda outs, sums: (torch.stack(outs, -1) * (sums * 1.4427).softmax(-1)[..., None, :]).sum(-1)
    ),
    wide(Plain, normalise=lambda scores: torch.cat([part.softmax(-1) for part in scores.split(2, -1)], -1)),
    wide(Online, rescaled=lambda out, less: out),
    wide(Online, kept=lambda total, less: total),
    wide(Online, kept=lambda total, less: total, block=8),
]


@pytest.mark.parametrize("module", BROKEN)
def test_parts_that_are_merged_wrongly(module: nn.Module) -> None:
    finding = one("split", module)
    assert (finding.name, finding.severity, finding.numbers["parts"]) == ("softmax-split", "bug", 3)
    found, right = ([float(x) for x in finding.evidence.values[name].split(", ")] for name in ("weights", "right"))
    assert max(abs(a - b) for a, b in zip(found, right, strict=True)) > 0.01


def test_a_factor_that_grows_from_block_to_block() -> None:
    finding = one("split", wide(Online, factor=lambda number: 1.44269504 ** (number + 1), power=torch.exp2))
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    factors = [float(x) for x in finding.evidence.values["factors"].split(", ")]
    assert max(factors) == pytest.approx(min(factors) * 1.44269504**4, rel=1e-3)


@pytest.mark.parametrize(
    "module",
    [
        *(wide(x) for x in (Parts, Online, WithASink, QueriesInBlocks, Attention, Causal, TwoKinds)),
        *(wide(Online, factor=lambda number: 1.44269504, power=torch.exp2), wide(Online, block=8)),
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found("split", module) == []
