"""Parts of a block that add their normalised input."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded
from tests.doctor.checks.styles import Plain

NAME = "residual_normed"


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
    finding = one(NAME, seeded(Block, Overwrites, Part))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert "attention gives its normalised input, and mlp its input as it is" in finding.evidence


@pytest.mark.parametrize(
    ("attention", "mlp"),
    [(Part, Part), (PostNorm, PostNorm), (WithoutResidual, Part), (Overwrites, Overwrites), (PostNorm, Part)],
)
def test_blocks_that_are_consistent(attention: type[Part], mlp: type[Part]) -> None:
    assert found(NAME, seeded(Block, attention, mlp)) == []


def test_what_has_no_parts() -> None:
    with pytest.raises(NotApplicable):
        found(NAME, seeded(Attention))


class Alone(nn.Module):
    """A pre-norm block in one class."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class AloneOverwrites(Alone):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x)
        x = x + self.attention(x)
        return x + self.mlp(self.norm2(x))


class AloneAfter(Alone):
    """Post-norm."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


def test_a_block_in_one_class() -> None:
    finding = one(NAME, seeded(AloneOverwrites))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert "the block gives its normalised input" in finding.evidence
    assert found(NAME, seeded(Alone)) == []
    with pytest.raises(NotApplicable, match="its output is normalised"):
        found(NAME, seeded(AloneAfter))


class OneNorm(nn.Module):
    """Attention and MLP beside each other, after one norm."""

    kept = True

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(16), Plain(), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return (x if self.kept else h) + self.attention(h) + self.mlp(h)


class OneNormAdded(OneNorm):
    kept = False


def test_a_block_of_one_norm() -> None:
    assert one("residual_normed", seeded(OneNormAdded)).name == "residual-dropped"
    assert found("residual_normed", seeded(OneNorm)) == []


class PostNormAndMore(OneNorm):
    """The sum is normalised, and the MLP is added to it."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x + self.attention(x))
        return h + self.mlp(h)


def test_a_norm_behind_the_attention() -> None:
    with pytest.raises(NotApplicable, match="its first projection is before its norm"):
        found("residual_normed", seeded(PostNormAndMore))
