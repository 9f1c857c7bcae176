"""The residuals of a block."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain, assert_at


class Block(nn.Module):
    """Pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Plain(), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.norm1(x))
        return h + self.mlp(self.norm2(h))


class AddsTheInputAgain(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(h))


class OldResidual(Block):
    """Two blocks; in the first the variable is not renewed."""

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.attention(self.norm1(x)) + residual
        x = self.mlp(self.norm2(x))
        x = residual + x
        return super().forward(x)


class Parallel(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm1(x)) + self.mlp(self.norm2(x))


class ParallelSum(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + (self.attention(self.norm1(x)) + self.mlp(self.norm2(x)))


class Sandwich(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.norm3(self.attention(self.norm1(x)))
        return h + self.norm4(self.mlp(self.norm2(h)))


class PostNorm(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x + self.attention(x))
        return self.norm2(h + self.mlp(h))


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x += self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class OneBranch(Block):
    """The MLP is the last part of the attention's branch."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm2(self.attention(self.norm1(x))))


class TwoBranches(Block):
    """Each has its own sum with the input; a gate mixes them."""

    def __init__(self) -> None:
        super().__init__()
        self.other = Plain()

    def forward(self, x: Tensor) -> Tensor:
        one, two = x + self.attention(self.norm1(x)), x + self.other(self.norm2(x))
        return one.lerp(two, 0.3)


class LastOfAll(Block):
    """The input of the whole is added once more at the end."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


@pytest.mark.parametrize("kind", [AddsTheInputAgain, OldResidual])
def test_a_residual_that_is_dropped(kind: type[nn.Module]) -> None:
    finding = one("residual", seeded(kind))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert_at(finding, kind, "x + self.mlp" if kind is AddsTheInputAgain else "residual + x")


@pytest.mark.parametrize(
    "kind", [Block, Parallel, ParallelSum, Sandwich, PostNorm, InPlace, OneBranch, TwoBranches, LastOfAll]
)
def test_a_healthy_block(kind: type[nn.Module]) -> None:
    try:
        assert found("residual", seeded(kind)) == []
    except NotApplicable:
        assert kind in (OneBranch, InPlace)


def test_a_bare_attention() -> None:
    with pytest.raises(NotApplicable):
        found("residual", seeded(Plain))


class Said(Plain):
    """LayerNorm(x + Attention(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.attend(x, x, None))


class AddsTheOutputToItself(Said):
    """LayerNorm(x + Attention(x))"""

    def forward(self, x: Tensor) -> Tensor:
        x = self.attend(x, x, None)
        return self.norm(x + x)


class AddedByTheCaller(Plain):
    """The residual is added outside of it."""


class DecoderBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = self.attention(self.norm1(x))
        return h + self.mlp(self.norm2(h))


class EncoderLayer(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.norm1(x))
        return self.mlp(self.norm2(h))


class ElsewhereAdded(Plain):
    """The projection, the residual and the norm that follow live in another class."""


class NormsItsOutput(Plain):
    """As BERT's: the norm is that of the residual's sum."""

    adds = True

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        out = self.attend(x, x, None)
        return self.norm(x + out if self.adds else out)


class AddsNothing(NormsItsOutput):
    adds = False


class BertLayer(nn.Module):
    def __init__(self, attention: type[nn.Module]) -> None:
        super().__init__()
        self.attention, self.norm = attention(), nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        return self.norm(x + self.mlp(x))


class Encoder(nn.Module):
    def __init__(self, attention: type[nn.Module] = AddsNothing) -> None:
        super().__init__()
        self.layers = nn.Sequential(BertLayer(attention), BertLayer(attention))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class WithAHead(Encoder):
    """A narrow layer at the end, as for classes."""

    def __init__(self) -> None:
        super().__init__(NormsItsOutput)
        self.wide, self.head = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wide(super().forward(x)))


class NormedHeadsBlock(Plain):
    """Queries and keys are normalised, and so is the input: one branch, whose sum may be its caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q_norm, self.k_norm = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.q_norm(self.norm(x)), self.k_norm(x), None)


@pytest.mark.parametrize("kind", [AddsTheOutputToItself, DecoderBlock, EncoderLayer, Encoder])
def test_a_residual_that_is_lost(kind: type[nn.Module]) -> None:
    finding = one("residual", seeded(kind))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert "does not depend on the queries' tokens" in finding.evidence


def test_the_layers_of_a_whole_encoder() -> None:
    assert found("residual", seeded(Encoder, NormsItsOutput)) == []
    assert found("residual", seeded(WithAHead)) == []


class OfTheBlock(Plain):
    """What a token says itself reaches the output over the residual path of the block."""


@pytest.mark.parametrize("kind", [Said, AddedByTheCaller, ElsewhereAdded, NormedHeadsBlock, OfTheBlock])
def test_a_residual_that_stands(kind: type[nn.Module]) -> None:
    with pytest.raises(NotApplicable):
        found("residual", seeded(kind))
