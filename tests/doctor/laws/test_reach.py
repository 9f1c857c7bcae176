"""What reaches an output: the future, too few tokens, or no memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, Causal, Cross, found, one, seeded, triangle

LAW = "reach"


class Masked(Attention):
    """It sees what `allowed` says of n tokens; None: all."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, self.allowed(x.shape[1]))

    def allowed(self, n: int) -> Tensor | None:
        return None


class CausalByName(Masked):
    pass


class InOneHead(Causal):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return torch.cat([super().fill(scores, allowed)[:, :1], scores[:, 1:]], dim=1)


class ByFlag(Attention):
    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        return self.attend(x, x, self.allowed(x.shape[1]) if is_causal else None)

    def allowed(self, n: int) -> Tensor | None:
        return triangle(n, n)


class Fused(Causal):
    """Causal by a flag of the fused function, which the path with weights lacks."""

    def forward(self, x: Tensor, output_attentions: bool = False) -> Any:
        if output_attentions:
            return self.attend(x, x, None)
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Padded(Attention):
    """A mask of padding, True = a real token, joins the causal one, or else replaces it."""

    joins = False

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        allowed = triangle(x.shape[1], x.shape[1]) if is_causal else None
        if padding_mask is not None:
            real = padding_mask[:, None, None]
            allowed = allowed & real if self.joins and allowed is not None else real
        return self.attend(x, x, allowed)


class Placed(Causal):
    """Positions, [N, 1], depend on how many tokens there are."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.places(x.shape[1]).sin())


def prompt_and_steps(late: int) -> Any:
    """A prompt is cached, then two single steps follow, which may stand too late."""

    def places(n: int) -> Tensor:
        at = torch.arange(n)[:, None]
        return at + late * (at >= max(1, n - 2))

    return places


class Decoder(nn.Module):
    """A layer that attends to its own past, and to a memory."""

    def __init__(self, *, either: bool = False, reads: bool = True) -> None:
        super().__init__()
        self.own, self.cross, self.either, self.reads = Attention(), Cross(), either, reads

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        n = target.shape[1]
        causal, real = triangle(n, n), torch.ones(1, n, dtype=torch.bool)
        target = target + self.own.attend(target, target, causal | real if self.either else causal & real)
        return target + self.cross(target, memory) if self.reads else target


class CutToHeads(Attention):
    """Keys are cut to the size of the wrong dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x[:, : self.heads], None)


@pytest.mark.parametrize(
    ("module", "name", "severity", "words"),
    [
        (seeded(Masked, allowed=lambda n: triangle(n, n, 1)), "causal-leak", "bug", "7 of 28 future tokens"),
        (seeded(Masked, allowed=lambda n: triangle(n, n).T), "mask-polarity", "bug", "to later positions"),
        (seeded(InOneHead), "causal-leak", "bug", "up to 7 places ahead"),
        (seeded(CausalByName), "causal-leak", "bug", "class CausalByName"),
        # Blocks of two, whose tokens see one another: perhaps they are pooled.
        (
            seeded(CausalByName, allowed=lambda n: torch.arange(n)[:, None] // 2 >= torch.arange(n) // 2),
            *("causal-leak", "risk", "4 of 28"),
        ),
        (seeded(ByFlag, allowed=lambda n: triangle(n, n, 1)), "causal-leak", "bug", "is_causal=True"),
        (seeded(ByFlag, allowed=lambda _: None), "causal-leak", "risk", "28 of 28"),  # a hint about a mask
        (seeded(Fused), "causal-leak", "bug", "with output_attentions=True 28 of 28 future tokens"),
        (seeded(Padded), "causal-leak", "bug", "with padding_mask that hides no key 28 of 28 future tokens"),
        (seeded(Placed, places=prompt_and_steps(1)), "cache-mismatch", "bug", "how many there are does"),
        (
            seeded(Placed, places=lambda n: torch.arange(n).flip(0)[:, None].float()),
            *("causal-leak", "risk", "how many there are does"),
        ),
        (seeded(Decoder, either=True), "causal-leak", "bug", "28 of 28 future tokens"),
        (seeded(CutToHeads), "tokens-unread", "bug", "of 20 tokens, none behind position 3"),
    ],
)
def test_what_reaches_too_much_or_too_little(module: nn.Module, name: str, severity: str, words: str) -> None:
    finding = one(LAW, module)
    assert (finding.name, finding.severity) == (name, severity)
    assert words in finding.evidence


class LengthInScale(Causal):
    """The logarithm of the number of keys is in the scale."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * torch.tensor(float(k.shape[2])).log()


def near(n: int) -> Tensor:
    """Neighbours on both sides: not causal, and not meant to be."""
    return (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 1


def test_healthy_ones() -> None:
    healthy = (Causal, ByFlag, Decoder, seeded(Padded, joins=True), seeded(Placed, places=prompt_and_steps(0)))
    for module in (*healthy, seeded(Masked, allowed=near)):
        assert found(LAW, module) == []
    assert {x.severity for x in found(LAW, LengthInScale)} == {"risk"}
    with pytest.raises(NotApplicable, match="memory"):
        found(LAW, Cross)


def test_a_memory_that_reaches_nothing() -> None:
    finding = one(LAW, seeded(Decoder, reads=False))
    assert (finding.name, finding.severity) == ("memory-ignored", "bug")
    assert "with other numbers in memory" in finding.evidence
