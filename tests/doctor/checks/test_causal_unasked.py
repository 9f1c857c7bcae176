"""A causal mask in a module that says it has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class SaysNo(Causal):
    is_causal = False


class Bidirectional(Attention):
    """Bidirectional attention of an encoder."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool).tril())


class Honest(Attention):
    """Bidirectional attention of an encoder."""

    is_causal = False


class Joint(nn.Module):
    """Tokens of text and image attend to all of both."""

    masks = True

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image, self.out = nn.Linear(16, 48), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        packed = torch.cat([self.text(context), self.image(x)], 1)
        q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in packed.chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.masks)
        found: Tensor = self.out(y.transpose(1, 2).flatten(2)[:, context.shape[1] :])
        return found


class JointBlock(nn.Module):
    """What its part says counts, too."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Joint()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        found: Tensor = x + self.attn(x, context)
        return found


class JointOfAll(Joint):
    """Tokens of text and image attend to all of both."""

    masks = False


@pytest.mark.parametrize("module", [SaysNo, Bidirectional, JointBlock])
def test_a_causal_mask_against_its_word(module: type[nn.Module]) -> None:
    finding = one("causal_unasked", seeded(module))
    assert (finding.name, finding.severity) == ("causal-unasked", "bug")


def test_healthy_ones() -> None:
    assert found("causal_unasked", seeded(Honest)) == []
    assert found("causal_unasked", seeded(JointOfAll)) == []
    with pytest.raises(NotApplicable):
        found("causal_unasked", seeded(Causal))
