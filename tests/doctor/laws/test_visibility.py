"""Masks that a module makes itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.finding import Finding
from headwise.doctor.laws.visibility import check
from headwise.doctor.patient import NotApplicable, Patient
from tests.doctor.laws.specimens import seeded
from tests.doctor.laws.styles import Plain, assert_at


def lower(q: int, k: int, diagonal: int = 0) -> Tensor:
    return torch.ones(q, k, dtype=torch.bool).tril(diagonal)


class Filled(Plain):
    """What its `allowed` says."""

    number = -torch.inf

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k).masked_fill(~self.allowed(q.shape[2], k.shape[2]), self.number)

    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k)


def found(module: type[nn.Module]) -> list[Finding]:
    return list(check(Patient(seeded(module))))


class OneAhead(Filled):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k, 1)


class TwoAhead(Filled):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k, 2)


class CausalTwoAhead(TwoAhead):
    pass


class OnlyEarlier(Filled):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k, -1)


class Reversed(Filled):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k).T


class Outside(Filled):
    """What is far, instead of what is near."""

    def allowed(self, q: int, k: int) -> Tensor:
        return (torch.arange(q)[:, None] - torch.arange(k)).abs() > 1


class Cut(Filled):
    """tril(masked, diagonal=window) instead of masked | tril(ones, diagonal=-window)."""

    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k) | (torch.arange(k) - torch.arange(q)[:, None] > 1)


class Unasked(Filled):
    is_causal = False


class FillsLittle(Filled):
    number = -1500.0


class LowersEverything(Plain):
    """A mask of 0 and -inf where one of 1 and 0 is expected."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        mask = torch.full((q.shape[2], q.shape[2]), -torch.inf).triu(1)
        return super().score(q, k) + (1 - mask) * -1e9


@pytest.mark.parametrize(
    ("module", "name", "severity", "words"),
    [
        (OneAhead, "causal-leak", "bug", "attend to 1 later position: its diagonal is 1, expected 0"),
        (TwoAhead, "causal-leak", "risk", "attend to 2 later positions"),  # a streaming model may look ahead
        (CausalTwoAhead, "causal-leak", "bug", "attend to 2 later positions"),
        (OnlyEarlier, "causal-leak", "bug", "so the first position has no allowed key: its output is NaN"),
        (Reversed, "mask-polarity", "bug", "is reversed"),
        (Outside, "mask-polarity", "bug", "outside of a window"),
        (Cut, "causal-leak", "bug", "not to the next 1, and again to those after them"),
        (Unasked, "causal-unasked", "bug", "is_causal is False, but without a mask"),
        (FillsLittle, "mask-fill-too-small", "risk", "to only -1500"),
        (LowersEverything, "mask-polarity", "bug", "every score is lowered to -1e+09"),
    ],
)
def test_a_mask_that_is_wrong(module: type[nn.Module], name: str, severity: str, words: str) -> None:
    (finding,) = found(module)
    assert (finding.name, finding.severity) == (name, severity)
    assert words in finding.evidence


def test_the_line_that_fills() -> None:
    assert_at(found(OneAhead)[0], Filled, "return super().score(q, k).masked_fill(")


class Corner(Filled):
    """Over a memory that is longer: the mask begins in the upper left corner."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(x, memory, None)


class FusedCorner(Corner):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


class BottomRight(Corner):
    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k, k - q)


class AskedFor(Corner):
    is_causal = True  # torch's own is aligned so


@pytest.mark.parametrize("module", [Corner, FusedCorner])
def test_a_causal_mask_in_the_wrong_corner(module: type[nn.Module]) -> None:
    (finding,) = found(module)
    assert (finding.name, finding.severity) == ("causal-corner", "bug")
    assert "with 5 queries and 7 keys, query 0 attends to key 0 alone" in finding.evidence


class InChunks(nn.Module):
    """Causal attention for three queries at a time."""

    start_over = False

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        outs = []
        for start in range(0, n, 3):
            part = q[:, :, start : start + 3]
            allowed = lower(part.shape[2], n, 0 if self.start_over else start)
            outs.append((part @ k.mT / 8**0.5).masked_fill(~allowed, float("-inf")).softmax(-1) @ v)
        return self.out(torch.cat(outs, 2).transpose(1, 2).reshape(b, n, m))


class StartsOver(InChunks):
    start_over = True


def test_chunks_that_each_begin_at_key_0() -> None:
    (finding,) = found(StartsOver)
    assert (finding.name, finding.severity, finding.numbers) == ("causal-corner", "bug", {"first": 3.0})


class Diagonal(Filled):
    """Everyone but oneself."""

    def allowed(self, q: int, k: int) -> Tensor:
        return ~torch.eye(q, k, dtype=torch.bool)


class Blocks(Filled):
    """Two positions at a time see one another and what came before."""

    def allowed(self, q: int, k: int) -> Tensor:
        return torch.arange(k) // 2 <= torch.arange(q)[:, None] // 2


class KeyOfNothing(OnlyEarlier):
    """A learned key and value before the others stand for an empty past."""

    def __init__(self) -> None:
        super().__init__()
        self.no_key, self.no_value = nn.Parameter(torch.randn(4, 1, 4)), nn.Parameter(torch.randn(4, 1, 4))

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        k = torch.cat([self.no_key.expand(len(k), -1, -1, -1), k], 2)
        v = torch.cat([self.no_value.expand(len(v), -1, -1, -1), v], 2)
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))

    def allowed(self, q: int, k: int) -> Tensor:
        return lower(q, k)


@pytest.mark.parametrize("module", [Filled, BottomRight, AskedFor, InChunks, Diagonal, Blocks, KeyOfNothing])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found(module) == []


def test_without_a_mask_of_its_own_there_is_nothing_to_check() -> None:
    with pytest.raises(NotApplicable, match="makes no mask"):
        found(Plain)
