"""Another path of the same call: train mode, other kernels, a copy that was loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws.modes import unregistered
from tests.doctor.laws.specimens import Attention, Causal, Normed, altered, found, one, seeded

LAW = "modes"


# Train mode.


class ForgetsTheMask(Attention):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if self.training and self.dropout.p else super().fill(scores, allowed)


def test_what_training_computes_otherwise() -> None:
    scaled = altered(score=lambda self, q, k: q @ k.mT * (2.0 if self.training else 0.5))
    for module, said in ((scaled, "without a mask"), (seeded(ForgetsTheMask, dropout=0.1), "with a mask")):
        finding = one(LAW, module)
        assert (finding.name, finding.severity) == ("train-eval-differ", "bug")
        assert finding.evidence.startswith(said)


# Other kernels.


class Switched(Attention):
    """`flash` chooses the kernel of torch. mask: True = may attend."""

    masks = True

    def __init__(self, flash: bool = True) -> None:
        super().__init__()
        self.flash = flash

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        if not self.flash:
            return super().attend(x, memory, allowed)
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        seen = allowed if self.masks else None
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)))


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
    """The path that returns weights may forget the output's projection."""

    right = True

    def forward(self, x: Tensor, need_weights: bool = False) -> Any:
        if not need_weights:
            return self.attend(x, x, None)
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = self.normalise(self.score(q, k))
        out = self.merge(weights @ v)
        return self.out(out) if self.right else out, weights


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (altered(Switched, False, masks=False), "with flash = True, with mask that masks key 1, the output differs"),
        (seeded(ByName, scale=1.0), "with attn_implementation = 'sdpa' the output differs"),
        (altered(WithWeights, right=False), "with need_weights = True the output differs"),
    ],
)
def test_paths_that_differ(module: nn.Module, said: str) -> None:
    finding = one(LAW, module)
    assert (finding.name, finding.severity) == ("paths-differ", "bug")
    assert said in finding.evidence


# Saving and loading.


class KeepsAList(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.more = [nn.Linear(16, 16), nn.Linear(16, 16)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.more[1](self.more[0](x)))


class Remakes(Attention):
    """Keeps what it made of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.folded = None

    def forward(self, x: Tensor) -> Tensor:
        if self.folded is None:
            self.folded = (self.q.weight.detach() @ self.k.weight.detach()).tril()
        return super().forward(x @ self.folded)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().load_state_dict(*args, **kwargs)
        self.folded = torch.zeros_like(self.q.weight)
        return found


class Renames(Attention):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {f"model.{name}": x for name, x in super().state_dict(*args, **kwargs).items()}


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (KeepsAList, "weights-unregistered", "more holds 544 weights"),  # 2 (16 · 16 + 16)
        (Remakes, "state-dict", "after its state dict is loaded into a copy"),
        (Renames, "state-dict", "cannot be loaded"),
    ],
)
def test_what_is_not_saved(kind: type[nn.Module], name: str, said: str) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == (name, "bug")
    assert said in finding.evidence


@pytest.mark.parametrize("kind", [Normed, Switched, ByName, WithWeights])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []
    assert unregistered(kind()) == {}
