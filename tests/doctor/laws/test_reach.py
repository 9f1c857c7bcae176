"""What reaches an output: the future, too few tokens, or no memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.finding import Finding
from headwise.doctor.laws import unread
from headwise.doctor.laws.reach import check
from headwise.doctor.patient import NotApplicable, Patient
from tests.doctor.laws.specimens import Attention, Causal, Cross, seeded


def found(module: type[nn.Module], *args: Any, **kwargs: Any) -> list[Finding]:
    return list(check(Patient(seeded(module, *args, **kwargs))))


def triangle(n: int, diagonal: int = 0) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril(diagonal)


class OneAhead(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, triangle(x.shape[1], 1))


class TurnedRound(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, triangle(x.shape[1]).T)


class InOneHead(Causal):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return torch.cat([super().fill(scores, allowed)[:, :1], scores[:, 1:]], dim=1)


class CausalByName(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)


class CausalInBlocks(Attention):
    """Blocks of two, whose tokens see one another: perhaps they are pooled."""

    def forward(self, x: Tensor) -> Tensor:
        block = torch.arange(x.shape[1]) // 2
        return self.attend(x, x, block[:, None] >= block)


class ByFlag(Attention):
    diagonal = 0

    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        return self.attend(x, x, triangle(x.shape[1], self.diagonal) if is_causal else None)


class ByFlagOneAhead(ByFlag):
    diagonal = 1


class IgnoresItsFlag(Attention):
    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        return self.attend(x, x, None)


class Fused(Causal):
    """Causal by a flag of the fused function, on one of its paths."""

    masks = False

    def forward(self, x: Tensor, output_attentions: bool = False) -> Any:
        if not output_attentions and not (self.training and self.dropout.p):
            q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
            return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return self.attend(x, x, triangle(x.shape[1]) if self.masks else None)


class FusedAndMasked(Fused):
    masks = True


class StepsStandLate(Causal):
    """A prompt is cached, then two single steps follow."""

    late = 1

    def forward(self, x: Tensor) -> Tensor:
        cut = max(1, x.shape[1] - 2)
        at = torch.arange(x.shape[1])[:, None]
        return super().forward(x + (at + self.late * (at >= cut)).sin())


class StepsStandRight(StepsStandLate):
    late = 0


class CountsFromTheEnd(Causal):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.arange(x.shape[1], dtype=x.dtype).flip(0)[:, None].sin())


class ScaledByTheLength(Causal):
    """The logarithm of the number of keys is in the scale."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * torch.tensor(float(k.shape[2])).log()


class CausalByDistance(Attention):
    """A number for each distance, added to the scores."""

    backwards = False

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, triangle(x.shape[1]))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        apart = (torch.arange(n)[:, None] - torch.arange(n)).clamp(min=0)
        return super().score(q, k) + self.table[n - 1 - apart if self.backwards else apart]


class CausalByDistanceBackwards(CausalByDistance):
    backwards = True


class Decoder(nn.Module):
    """A layer that attends to its own past, and to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Cross()

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        n = target.shape[1]
        target = target + self.own.attend(target, target, self.both(triangle(n), torch.ones(1, n, dtype=torch.bool)))
        return target + self.cross(target, memory)

    def both(self, causal: Tensor, real: Tensor) -> Tensor:
        return causal & real


class EitherOfTwo(Decoder):
    def both(self, causal: Tensor, real: Tensor) -> Tensor:
        return causal | real


class DecoderWithoutMemory(Decoder):
    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        return self.own.attend(target, target, triangle(target.shape[1]))


class CutToHeads(Attention):
    """Keys are cut to the size of the wrong dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x[:, : self.heads], None)


@pytest.mark.parametrize(
    ("module", "name", "severity", "words"),
    [
        (OneAhead, "causal-leak", "bug", "7 of 28 future tokens still reach an earlier row (exactly the next token)"),
        (TurnedRound, "mask-polarity", "bug", "28 of 28 future pairs"),
        (InOneHead, "causal-leak", "bug", "up to 7 tokens ahead"),
        (CausalByName, "causal-leak", "bug", "class CausalByName"),
        (CausalInBlocks, "causal-leak", "risk", "4 of 28"),
        (ByFlagOneAhead, "causal-leak", "bug", "is_causal=True"),
        (IgnoresItsFlag, "causal-leak", "risk", "28 of 28"),  # some take it as a hint about the mask
        (Fused, "causal-leak", "bug", "with output_attentions=True 28 of 28 future tokens"),
        (StepsStandLate, "cache-mismatch", "bug", "how many there are does"),
        (CountsFromTheEnd, "causal-leak", "risk", "how many there are does"),
        (CausalByDistanceBackwards, "causal-leak", "bug", "how many there are does"),
        (EitherOfTwo, "causal-leak", "bug", "28 of 28 future tokens"),
    ],
)
def test_what_reaches_too_much_or_too_little(module: type[nn.Module], name: str, severity: str, words: str) -> None:
    (finding,) = found(module)
    assert (finding.name, finding.severity) == (name, severity)
    assert words in finding.evidence


def test_what_is_not_seen() -> None:
    cases = [
        (DecoderWithoutMemory, "memory-ignored", "with other numbers in memory"),
        (CutToHeads, "tokens-unread", "of 20 tokens, none behind position 3"),
    ]
    for module, name, words in cases:
        (finding,) = unread.check(Patient(seeded(module)))
        assert (finding.name, finding.severity) == (name, "bug")
        assert words in finding.evidence
    for healthy in (Attention, Causal, Cross, Decoder):
        assert list(unread.check(Patient(seeded(healthy)))) == []


def test_a_path_of_train_mode() -> None:
    assert found(Fused, dropout=0.1)[0].evidence.startswith("in train mode 28 of 28")
    assert found(FusedAndMasked, dropout=0.1) == []


class Window(Attention):
    """Neighbours on both sides: not causal, and not meant to be."""

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        return self.attend(x, x, (at[:, None] - at[None]).abs() <= 1)


class Switched(Attention):
    """A triangle stands under an option that is off."""

    def __init__(self, is_decoder: bool) -> None:
        super().__init__()
        self.is_decoder = is_decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, triangle(x.shape[1]) if self.is_decoder else None)


def test_healthy_ones() -> None:
    for kind in (Attention, Causal, Window, ByFlag, StepsStandRight, Decoder, CausalByDistance):
        assert found(kind) == []
    assert [*found(Switched, False), *found(Switched, True)] == []
    assert {x.severity for x in found(ScaledByTheLength)} == {"risk"}
    with pytest.raises(NotApplicable, match="memory"):
        found(Cross)
