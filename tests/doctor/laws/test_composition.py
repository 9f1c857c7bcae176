"""Residuals: of normalised inputs, and those that are not passed on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, altered, found, one, seeded
from tests.doctor.laws.styles import Plain

LAW = "composition"


class Block(nn.Module):
    """A pre-norm block in one class."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Plain(), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.norm1(x))
        return h + self.mlp(self.norm2(h))


def _first_overwritten(self: Any, x: Tensor) -> Tensor:
    x = self.norm1(x)
    x = x + self.attention(x)
    return x + self.mlp(self.norm2(x))


def _last_overwritten(self: Any, x: Tensor) -> Tensor:
    x = self.norm2(x + self.attention(self.norm1(x)))
    return x + self.mlp(x)


def _input_added_again(self: Any, x: Tensor) -> Tensor:
    h = x + self.attention(self.norm1(x))
    return x + self.mlp(self.norm2(h))


def _input_added_after_the_norm(self: Any, x: Tensor) -> Tensor:
    h = self.norm1(x + self.attention(x))
    return self.norm2(x + self.mlp(h))


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (_first_overwritten, "what goes on behind norm1 is its output, and behind norm2 its input"),
        (_last_overwritten, "the residual was overwritten by the norm"),
        (_input_added_again, "is not passed on"),
        (_input_added_after_the_norm, "is not passed on"),
    ],
)
def test_a_residual_that_is_lost(forward: Any, said: str) -> None:
    finding = one(LAW, altered(Block, forward=forward))
    assert (finding.name, finding.severity) == ("residual-dropped", "bug")
    assert said in finding.evidence


def _post_norm(self: Any, x: Tensor) -> Tensor:
    h = self.norm1(x + self.attention(x))
    return self.norm2(h + self.mlp(h))


def _sandwich(self: Any, x: Tensor) -> Tensor:
    h = x + self.norm3(self.attention(self.norm1(x)))
    return h + self.norm4(self.mlp(self.norm2(h)))


def _of_two(self: Any, x: Tensor, memory: Tensor) -> Tensor:
    """Queries and a memory have norms of their own, in this order; positions are added to the queries."""
    q = self.norm1(x + torch.arange(x.shape[1])[:, None])
    h = x + self.attention.attend(q, self.norm2(memory), None)
    return h + self.mlp(self.norm3(h))


@pytest.mark.parametrize(
    "forward",
    [
        *(Block.forward, _post_norm, _sandwich, _of_two),
        lambda self, x: x + self.attention(self.norm1(x)) + self.mlp(self.norm2(x)),  # parallel
        lambda self, x: x + Block.forward(self, x),  # the input of the whole, once more
    ],
)
def test_a_healthy_block(forward: Any) -> None:
    assert found(LAW, altered(Block, forward=forward)) == []


class OfEmbeddings(nn.Module):
    """As ModernBERT: the embedding's norm is that of the first attention, too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(16), Plain(), Block()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.second(x + self.first(x))


def test_a_norm_of_embeddings() -> None:
    assert found(LAW, seeded(OfEmbeddings)) == []


def test_what_has_no_norms() -> None:
    with pytest.raises(NotApplicable):
        found(LAW, seeded(Attention))
