"""Linear attention and the sum that it divides by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.laws.specimens import Attention, found, one
from tests.doctor.laws.styles import Plain

torch.manual_seed(0)  # for the modules that are made here


class Linear(nn.Module):
    """padding_mask: [B, N], True = a real token."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.__dict__.update(parts)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (4, 4)) for w in (self.q, self.k, self.v))
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        if padding_mask is not None:
            real = padding_mask[..., None, None].to(x)
            k, v = self.hidden(k, real), v * real
        out = (q[..., None] * (k[..., None] * v[..., None, :]).cumsum(1)).sum(-2)
        return self.out(self.normalised(out, q, k).flatten(2))

    def hidden(self, k: Tensor, real: Tensor) -> Tensor:
        return k * real

    def normalised(self, out: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return out / ((q * k.cumsum(1)).sum(-1, keepdim=True) + 1e-9)


class InBlocks(nn.Module):
    """A softmax over two halves of the keys, merged (ring attention); one projection for queries, keys and values."""

    def __init__(self, kept: Any = lambda scale: scale) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(8 * x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        first, second = (q @ keys.mT / 2 for keys in k.chunk(2, 2))
        most, most_ = first.amax(-1, keepdim=True), second.amax(-1, keepdim=True)
        new = most.maximum(most_)
        old_scale, scale = (most - new).exp(), (most_ - new).exp()
        first, second = (first - most).exp(), (second - most_).exp()
        out = first @ v.chunk(2, 2)[0] * old_scale + second @ v.chunk(2, 2)[1] * scale
        total = first.sum(-1, keepdim=True) * self.kept(old_scale) + second.sum(-1, keepdim=True) * scale
        return self.proj((out / total).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            Linear(normalised=lambda out, q, k: out / (q * k.cumsum(2)).sum(-1, keepdim=True)),
            "the sum that it divides by is not that of its weights",
        ),
        (Linear(hidden=lambda k, real: k), "padded keys are left out of the values, and counted in the sum"),
        (InBlocks(kept=lambda scale: scale.clamp(min=1)), "off by up to"),
    ],
)
def test_the_wrong_sum(module: nn.Module, said: str) -> None:
    finding = one("normaliser", module)
    assert (finding.name, finding.severity) == ("normaliser-wrong", "bug")
    assert said in finding.evidence


@pytest.mark.parametrize(
    "module",
    [
        *(Linear(), InBlocks(), Attention(), Linear(normalised=lambda out, q, k: out)),
        Linear(normalised=lambda out, q, k: out / out.square().mean(-1, keepdim=True).sqrt()),  # a retention's norm
        Plain(normalise=lambda scores: (scores - scores.new_tensor(scores.shape[-1]).log()).sigmoid()),
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found("normaliser", module) == []
