"""Keys in parts, and how these are merged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import split
from tests.doctor.laws.specimens import Attention, Causal
from tests.doctor.laws.styles import Plain
from tests.doctor.laws.told import names, told

# By hand.


def test_shares() -> None:
    parts = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)  # two parts of three numbers
    known = torch.ones(1, dtype=torch.bool)
    found = split.shares_in(parts @ torch.tensor([0.25, 0.75], dtype=torch.float64), parts, known)
    assert found is not None
    assert found.tolist() == [pytest.approx([0.25, 0.75])]
    assert split.shares_in(torch.tensor([[1.0, 0.0, 5.0]], dtype=torch.float64), parts, known) is None


def test_how_far_shares_are_apart() -> None:
    expected = torch.tensor([0.25, 0.75]).view(1, 1, 1, 2).expand(1, 2, 1, 2)
    sums, known = torch.tensor([4.0, 9.0]).view(1, 2, 1), torch.ones(1, 2, 1, dtype=torch.bool)
    assert float(split.apart(expected, expected, sums, known).max()) == 0
    even = torch.full_like(expected, 0.5)
    assert split.apart(even, expected, sums, known).flatten().tolist() == [0.25, 0.25]
    sink = expected * (sums / (sums + 1))[..., None]  # a sink of exp(0) beside each sum
    assert float(split.apart(sink, expected, sums, known).max()) < 1e-6


# Modules.


def wide(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind(32, 4)


class Parts(Plain):
    """Two keys at a time; merged by the shares of the sums of exponentials."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        outs, sums = [], []
        for i in range(0, k.shape[2], 2):
            scores = self.score(q, k[:, :, i : i + 2])
            outs.append(scores.softmax(-1) @ v[:, :, i : i + 2])
            sums.append(scores.logsumexp(-1, keepdim=True))
        return self.out(self.merge(self.together(outs, torch.cat(sums, -1))))

    def together(self, outs: list[Tensor], sums: Tensor) -> Tensor:
        return (torch.stack(outs, -1) * sums.softmax(-1)[..., None, :]).sum(-1)


class Averaged(Parts):
    def together(self, outs: list[Tensor], sums: Tensor) -> Tensor:
        return torch.stack(outs).mean(0)


class LastPart(Parts):
    def together(self, outs: list[Tensor], sums: Tensor) -> Tensor:
        return outs[-1]


class BaseTwo(Parts):
    """Sums in base 2, merged as natural logarithms."""

    def together(self, outs: list[Tensor], sums: Tensor) -> Tensor:
        return super().together(outs, sums * 1.4427)


class EachNormalised(Plain):
    """The scores are whole, and each half of a row sums to 1."""

    def normalise(self, scores: Tensor) -> Tensor:
        return torch.cat([part.softmax(-1) for part in scores.split(3, -1)], -1)


class TwoKinds(Plain):
    """Keys of another projection beside the usual ones, added on purpose (IP-Adapter)."""

    def __init__(self) -> None:
        super().__init__()
        self.k2, self.v2 = nn.Linear(16, 16), nn.Linear(16, 16)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q = self.split(self.q(x))
        k, v, k2, v2 = (self.split(w(memory)) for w in (self.k, self.v, self.k2, self.v2))
        out = self.score(q, k).softmax(-1) @ v + self.score(q, k2[:, :, :2]).softmax(-1) @ v2[:, :, :2]
        return self.out(self.merge(out))


class Online(Plain):
    """Blocks of two keys: a running maximum, and one division at the end."""

    block = 2

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        top, total, out = torch.full_like(q[..., :1], -torch.inf), torch.zeros_like(q[..., :1]), torch.zeros_like(q)
        for number, (keys, values) in enumerate(zip(k.split(self.block, 2), v.split(self.block, 2), strict=True)):
            scores = self.scores(q, keys, number)
            above = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, less = self.power(scores - above), self.power(top - above)
            total, out = self.added(total, out, less, weights.sum(-1, keepdim=True), weights @ values)
            top = above
        return self.out(self.merge(out / self.divisor(total, top)))

    def scores(self, q: Tensor, k: Tensor, number: int) -> Tensor:
        return self.score(q, k)

    def power(self, x: Tensor) -> Tensor:
        return x.exp()

    def added(self, total: Tensor, out: Tensor, less: Tensor, more: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        return total * less + more, out * less + part

    def divisor(self, total: Tensor, top: Tensor) -> Tensor:
        return total


class OutputNotRescaled(Online):
    def added(self, total: Tensor, out: Tensor, less: Tensor, more: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        return total * less + more, out + part


class SumNotRescaled(Online):
    def added(self, total: Tensor, out: Tensor, less: Tensor, more: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        return total + more, out * less + part


class BaseTwoOnline(Online):
    """Powers of 2 of scores times log2(e)."""

    def scores(self, q: Tensor, k: Tensor, number: int) -> Tensor:
        return self.score(q, k) * 1.44269504

    def power(self, x: Tensor) -> Tensor:
        return x.exp2()


class ScaledInTheLoop(BaseTwoOnline):
    def scores(self, q: Tensor, k: Tensor, number: int) -> Tensor:
        return self.score(q, k) * 1.44269504 ** (number + 1)


class Sink(Online):
    """A learned number that only the sum counts."""

    def __init__(self, *args: int) -> None:
        super().__init__(*args)
        self.sink = nn.Parameter(torch.randn(1, 4, 1, 1))

    def divisor(self, total: Tensor, top: Tensor) -> Tensor:
        return total + (self.sink - top).exp()


class QueriesInBlocks(Online):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return torch.cat([super(QueriesInBlocks, self).attend(part, memory, allowed) for part in x.split(2, 1)], 1)


class Running(Plain):
    """Blocks of keys with a running maximum. Few tokens are a single block."""

    block_size = 8

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.k_block = self.block_size

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        highest = q.new_full((*q.shape[:-1], 1), -1e30)
        out, total = torch.zeros_like(q), torch.zeros_like(highest)
        for keys, values in zip(k.split(self.block_size, 2), v.split(self.block_size, 2), strict=True):
            scores = self.score(q, keys)
            now = torch.maximum(highest, scores.amax(-1, keepdim=True))
            weights, fade = (scores - now).exp(), (highest - now).exp()
            out = out * fade + weights @ values  # before the sum is taken
            total = self.faded(total, fade) + weights.sum(-1, keepdim=True)
            highest = now
        return self.out(self.merge(out / total))

    def faded(self, total: Tensor, fade: Tensor) -> Tensor:
        return total * fade


class KeepsTheOldSum(Running):
    def faded(self, total: Tensor, fade: Tensor) -> Tensor:
        return total


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        *((Averaged, 3), (LastPart, 3), (BaseTwo, 3), (EachNormalised, 2), (OutputNotRescaled, 3), (SumNotRescaled, 3)),
        (KeepsTheOldSum, 3),
    ],
)
def test_parts_that_are_merged_wrongly(kind: type[nn.Module], parts: int) -> None:
    (finding,) = told(split, wide(kind))
    assert (finding.name, finding.severity, finding.numbers["parts"]) == ("softmax-split", "bug", parts)
    assert finding.numbers["difference"] > 0.01
    assert ("a softmax of its own" in finding.evidence) == (kind in (Averaged, LastPart, BaseTwo, EachNormalised))


def test_a_factor_that_grows_from_block_to_block() -> None:
    (finding,) = told(split, wide(ScaledInTheLoop))
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert finding.numbers["most"] == pytest.approx(finding.numbers["least"] * 1.44269504**4, rel=1e-3)


@pytest.mark.parametrize(
    "kind", [Parts, Online, BaseTwoOnline, Sink, QueriesInBlocks, Running, Attention, Causal, TwoKinds]
)
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert names(split, wide(kind) if kind is not TwoKinds else kind) == []
