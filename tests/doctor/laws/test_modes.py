"""Another path of the same call: train mode, other kernels, a copy that was loaded."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws.modes import switches, unregistered
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded

LAW = "modes"


# Train mode.


class ScalesInTraining(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * (2 if self.training else 1)


class ForgetsTheMaskInTraining(Attention):
    """With dropout it takes a path of its own."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if self.training and self.dropout.p else super().fill(scores, allowed)


class Normed(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x.transpose(1, 2)).transpose(1, 2))


class RandomInTraining(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + (torch.randn(()) if self.training else 0) * k.sum(-1)[..., None, :]


class DropsByItsOwnNumber(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.attn_dropout = 0.5

    def normalise(self, scores: Tensor) -> Tensor:
        keep = (torch.rand_like(scores) >= self.attn_dropout).float() if self.training else torch.ones_like(scores)
        return scores.softmax(-1) * keep / (1 - self.attn_dropout * self.training)


def test_a_scale_of_training_only() -> None:
    finding = one(LAW, seeded(ScalesInTraining))
    assert (finding.name, finding.severity) == ("train-eval-differ", "bug")
    assert finding.numbers["change"] > 0.05
    assert finding.evidence.startswith("without a mask")


def test_a_path_without_the_mask() -> None:
    finding = one(LAW, seeded(ForgetsTheMaskInTraining, dropout=0.1))
    assert finding.severity == "bug"
    assert finding.evidence.startswith("with a mask")


@pytest.mark.parametrize("module", [Normed, RandomInTraining, DropsByItsOwnNumber, lambda: Attention(dropout=0.5)])
def test_a_train_mode_that_is_right_or_random(module: Any) -> None:
    assert found(LAW, seeded(module)) == []
    assert functional.dropout is torch.nn.functional.dropout  # nothing stays patched


# Other kernels.


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
    finding = one(LAW, seeded(module))
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
    assert found(LAW, seeded(module)) == []


def test_which_attributes_choose_a_kernel() -> None:
    module = ByName()
    module.use_flash_attention, module.mem_efficient, module.causal, module.fast_start = True, False, True, True
    assert switches(module) == {
        "use_flash_attention": (True, [False]),
        "mem_efficient": (False, [True]),
        "attn_implementation": ("eager", ["sdpa"]),
    }


# Saving and loading.


class KeepsAList(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.more = [nn.Linear(16, 16), nn.Linear(16, 16)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.more[1](self.more[0](x)))


class Remakes(Attention):
    """Keeps a copy of a parameter beside it."""

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


class Tables(Attention):
    """Constants that are made anew need not be saved."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(64)[:, None] / 10000 ** (torch.arange(8) / 8)
        self.table = torch.cat([angles.sin(), angles.cos()], dim=1)
        self.register_buffer("seen", torch.ones(64, 64).tril().bool(), persistent=False)
        self.scale = torch.tensor(math.sqrt(4.0))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        x = x + self.table[:n]
        return self.attend(x, x, self.seen[:n, :n])


def test_modules_in_a_plain_list() -> None:
    finding = one(LAW, seeded(KeepsAList))
    assert (finding.name, finding.severity) == ("weights-unregistered", "bug")
    assert finding.numbers["weights"] == 2 * (16 * 16 + 16)
    assert "more holds 544 weights" in finding.evidence


def test_loading_that_changes_the_output() -> None:
    finding = one(LAW, seeded(Remakes))
    assert (finding.name, finding.severity) == ("state-dict", "bug")
    assert finding.numbers["change"] > 0.01


def test_a_state_dict_that_cannot_be_loaded() -> None:
    module = seeded(Renames)
    finding = one(LAW, module)
    assert finding.severity == "bug"
    assert "cannot be loaded" in finding.evidence


@pytest.mark.parametrize("kind", [Attention, Tables])
def test_all_that_matters_is_saved(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []
    assert unregistered(kind()) == {}
