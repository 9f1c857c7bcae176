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
    finding = one(NAME, seeded(LinesOverwrite))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert "what goes on behind before_attention.0 is its output" in finding.evidence
    for healthy in (Lines, FirstWithoutNorm, LinesAfter):
        assert found(NAME, seeded(healthy)) == []


class OneBlock(nn.Module):
    """A block in two lines, the second of which is the last."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attention = nn.LayerNorm(16), nn.LayerNorm(16), Plain()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class OverwritesTheLast(OneBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = self.ln2(x + self.attention(self.ln1(x)))
        return x + self.mlp(x)


def test_the_last_part_of_a_block() -> None:
    finding = one("residual_normed", seeded(OverwritesTheLast))
    assert "behind ln2 is its output, and behind ln1 its input" in finding.evidence
    assert found("residual_normed", seeded(OneBlock)) == []
