"""A residual that both a part and its caller add."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain


class Part(nn.Module):
    """Attention with its norm and its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v, self.out = nn.LayerNorm(16), *(nn.Linear(16, 16) for _ in range(4))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (f(self.norm(x)).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.mT / 2).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(x)


class WithoutResidual(Part):
    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)


class Block(nn.Module):
    def __init__(self, part: type[nn.Module] = Part) -> None:
        super().__init__()
        self.attention, self.norm, self.mlp = part(), nn.LayerNorm(16), nn.Linear(16, 16)
        self.last = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(x)
        return self.last(h + self.mlp(self.norm(h)))


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x += self.attention(x)
        return self.last(x + self.mlp(self.norm(x)))


class OneAdds(Block):
    """The part's own is the only one."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.attention(x)
        return self.last(h + self.mlp(self.norm(h)))


class LongSkip(Block):
    """From before a layer to after the block: another tensor than the part's input."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.mlp(x))


@pytest.mark.parametrize("block", [Block, InPlace])
def test_both_add_it(block: type[nn.Module]) -> None:
    finding = one("residual_doubled", seeded(block))
    assert (finding.name, finding.severity) == ("residual-doubled", "bug")
    assert "attention gives its input" in finding.evidence


@pytest.mark.parametrize("block", [OneAdds, LongSkip])
def test_one_of_them_adds_it(block: type[nn.Module]) -> None:
    assert found("residual_doubled", seeded(block)) == []


def test_a_part_without_a_residual() -> None:
    assert found("residual_doubled", seeded(Block, WithoutResidual)) == []


def test_a_module_without_parts_that_attend() -> None:
    with pytest.raises(NotApplicable, match="none of its parts is an attention"):
        found("residual_doubled", seeded(Plain))
