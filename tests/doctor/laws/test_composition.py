"""Residuals: of normalised inputs, and those that are not passed on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws.composition import Tape, alike
from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, found, one, seeded
from tests.doctor.laws.styles import Plain

LAW = "composition"


class Part(nn.Module):
    """Pre-norm."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(16), layer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(self.norm(x))


class Overwrites(Part):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return x + self.layer(x)


class PostNorm(Part):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.layer(x))


class WithoutResidual(Part):
    """The block adds it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.norm(x))


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, attention: type[Part], mlp: type[Part]) -> None:
        super().__init__()
        self.attention = attention(Attention())
        self.mlp = mlp(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attention(x))


def test_a_norm_that_overwrites_the_residual() -> None:
    finding = one(LAW, seeded(Block, Overwrites, Part))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert "what goes on behind attention.norm is its output, and behind mlp.norm its input" in finding.evidence


@pytest.mark.parametrize(
    ("attention", "mlp"),
    [(Part, Part), (PostNorm, PostNorm), (WithoutResidual, Part), (Overwrites, Overwrites), (PostNorm, Part)],
)
def test_blocks_that_are_consistent(attention: type[Part], mlp: type[Part]) -> None:
    assert found(LAW, seeded(Block, attention, mlp)) == []


def test_what_has_no_parts() -> None:
    with pytest.raises(NotApplicable):
        found(LAW, seeded(Attention))


class Lines(nn.Module):
    """Two blocks whose parts are lines of one forward, with lists of norms and layers, as in SASRec."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_norm = nn.LayerNorm(16)
        self.before_attention, self.before_mlp = (nn.ModuleList(nn.LayerNorm(16) for _ in range(2)) for _ in range(2))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(16, 2) for _ in range(2))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding_norm(x)
        for norm, attention, norm2, mlp in zip(
            self.before_attention, self.attentions, self.before_mlp, self.mlps, strict=True
        ):
            x = self.attend(norm, attention, x.transpose(0, 1)).transpose(0, 1)
            x = x + mlp(norm2(x))
        return x

    def attend(self, norm: nn.Module, attention: nn.Module, x: Tensor) -> Tensor:
        h = norm(x)
        return x + attention(h, h, h)[0]


class LinesOverwrite(Lines):
    def attend(self, norm: nn.Module, attention: nn.Module, x: Tensor) -> Tensor:
        h = norm(x)
        return h + attention(h, x, x)[0]


class LinesAfter(Lines):
    """Post-norm at the attention, pre-norm at the MLP."""

    def attend(self, norm: nn.Module, attention: nn.Module, x: Tensor) -> Tensor:
        return norm(x + attention(x, x, x)[0])


class FirstWithoutNorm(Lines):
    """As ModernBERT: the embedding's norm is that of the first attention, too."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention[0] = nn.Identity()


def test_parts_that_are_lines_of_one_forward() -> None:
    finding = one(LAW, seeded(LinesOverwrite))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert "what goes on behind before_attention.0 is its output" in finding.evidence
    for healthy in (Lines, FirstWithoutNorm, LinesAfter):
        assert found(LAW, seeded(healthy)) == []


class Alone(nn.Module):
    """A pre-norm block in one class."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Plain(), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.norm1(x))
        return h + self.mlp(self.norm2(h))


class OverwritesTheInput(Alone):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x)
        x = x + self.attention(x)
        return x + self.mlp(self.norm2(x))


class OverwritesTheLast(Alone):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2(x + self.attention(self.norm1(x)))
        return x + self.mlp(x)


class AddsTheInputAgain(Alone):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(h))


class OldResidual(Alone):
    """Two blocks; in the first the variable is not renewed."""

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.attention(self.norm1(x)) + residual
        x = self.mlp(self.norm2(x)) + residual
        return super().forward(x)


class AfterTheSum(Alone):
    """Post-norm, with the input added again."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(h))


@pytest.mark.parametrize("kind", [OverwritesTheInput, OverwritesTheLast])
def test_a_norm_that_overwrites_the_residual_in_one_class(kind: type[nn.Module]) -> None:
    assert "was overwritten by the norm" in one(LAW, seeded(kind)).evidence


@pytest.mark.parametrize("kind", [AddsTheInputAgain, OldResidual, AfterTheSum])
def test_a_sum_that_is_not_passed_on(kind: type[nn.Module]) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert "is not passed on" in finding.evidence


class Parallel(Alone):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm1(x)) + self.mlp(self.norm2(x))


class Sandwich(Alone):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.norm3(self.attention(self.norm1(x)))
        return h + self.norm4(self.mlp(self.norm2(h)))


class PostNormAndMore(Alone):
    """The sum is normalised, and the MLP is added to it."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x + self.attention(x))
        return h + self.mlp(h)


class OfTwo(Alone):
    """Queries and a memory have norms of their own, in this order; positions are added to the queries."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 16))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q = self.norm1(x + self.positions)
        h = x + self.attention.attend(q, self.norm2(memory), None)
        return h + self.mlp(self.norm3(h))


class LastOfAll(Alone):
    """The input of the whole is added once more at the end."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


@pytest.mark.parametrize("kind", [Alone, Parallel, Sandwich, PostNormAndMore, OfTwo, LastOfAll])
def test_a_healthy_block(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []


def test_what_goes_on_behind_a_norm() -> None:
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, 1.0]])
    tape = Tape(norms=[("first", x, y), ("unused", 0 * x, x), ("last", 3 * x, y)], fed=[(1, y)], out=x)
    assert torch.equal(tape.stream(0), 3 * x)
    assert torch.equal(tape.stream(2), x)
    assert (tape.feeds(0), tape.feeds(2)) == (True, False)
    assert alike(x[None], torch.tensor([2.0, 1.0]))
    assert not alike(x, y)
