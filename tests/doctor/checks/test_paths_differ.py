"""Modules with a fused and a written-out path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class Switched(Attention):
    """`flash` chooses the kernel of torch. mask: True = may attend."""

    def __init__(self, flash: bool = True) -> None:
        super().__init__()
        self.flash = flash

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        if not self.flash:
            return super().attend(x, memory, allowed)
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(self.fused(q, k, v, allowed)))

    def fused(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


class NoMaskWhenFused(Switched):
    def fused(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)


class ByName(Causal):
    """Sees no future. config.attn_implementation: "eager" or "sdpa"."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.config, self.scale = SimpleNamespace(attn_implementation="eager"), scale

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        if self.config.attn_implementation != "sdpa":
            return super().attend(x, memory, allowed)
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.out(self.merge(out))


class WithWeights(Attention):
    """The path that returns weights forgets the output's projection."""

    right = False

    def forward(self, x: Tensor, need_weights: bool = False) -> Any:
        if not need_weights:
            return self.attend(x, x, None)
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = self.normalise(self.score(q, k))
        out = self.merge(weights @ v)
        return self.out(out) if self.right else out, weights


class WithWeightsRight(WithWeights):
    right = True


class CausalWhenWrittenOut(Switched):
    """As GPT-2 of transformers: a causal mask is expected from outside, and one path has its own as well."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        n, m = scores.shape[-2:]
        return super().fill(super().fill(scores, torch.ones(n, m, dtype=torch.bool).tril()), allowed)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda: NoMaskWhenFused(flash=False), "with flash = True, with mask that masks key 1, the output differs"),
        (lambda: ByName(scale=1.0), "with attn_implementation = 'sdpa' the output differs"),
        (lambda: WithWeights(), "with need_weights = True the output differs"),
    ],
)
def test_paths_that_differ(module: Any, said: str) -> None:
    finding = one("paths_differ", seeded(module))
    assert (finding.name, finding.severity) == ("paths-differ", "bug")
    assert said in finding.evidence


@pytest.mark.parametrize(
    "module",
    [
        Switched,
        lambda: Switched(flash=False),
        ByName,
        WithWeightsRight,
        lambda: nn.MultiheadAttention(16, 4),
    ],
)
def test_paths_that_agree(module: Any) -> None:
    assert found("paths_differ", seeded(module)) == []
