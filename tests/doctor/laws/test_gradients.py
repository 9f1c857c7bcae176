"""Parameters that no gradient reaches, and weights that stay 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, altered, found, one, seeded

LAW = "gradients"


class More(Attention):
    """One linear layer more, which an option uses."""

    gated = False

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gate(x) if self.gated else super().forward(x)


class MoreByFlag(More):
    def forward(self, x: Tensor, use_gate: bool = False) -> Tensor:
        return self.attend(x, x, None) * self.gate(x) if use_gate else self.attend(x, x, None)


class MoreThrownAway(More):
    def forward(self, x: Tensor) -> Tensor:
        self.gate(x)
        return self.attend(x, x, None)


class MoreForgotten(More):
    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)


@pytest.mark.parametrize(
    ("kind", "severity", "said"),
    [
        (MoreForgotten, "bug", "forward does not use gate"),
        (MoreThrownAway, "bug", "forward reads it, and nothing that it returns depends on it"),
        (More, "risk", "so it is in any way of calling that was tried; some other option may use it"),
    ],
)
def test_a_layer_that_is_not_used(kind: type[nn.Module], severity: str, said: str) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("unused-parameter", severity)
    assert finding.evidence == f"no gradient ever reaches gate.weight [16, 16] and gate.bias [16]: {said}"
    assert "self.gate = nn.Linear(16, 16)" in finding.where.code


def test_an_option_turns_it_on() -> None:
    assert found(LAW, altered(More, gated=True)) == []
    assert found(LAW, seeded(MoreByFlag)) == []  # the flag is turned to see


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"normalise": lambda self, scores: scores.softmax(-1).detach()}, "q.weight, q.bias and k.weight: other"),
        (
            {"forward": torch.no_grad()(lambda self, x: self.attend(x, x, None))},
            "8 parameters, q.weight first: autograd",
        ),
    ],
)
def test_gradients_that_are_cut_off(methods: dict[str, Any], said: str) -> None:
    finding = one(LAW, altered(**methods))
    assert (finding.name, finding.severity) == ("gradient-blocked", "bug")
    assert finding.evidence.startswith(f"no gradient reaches {said}")  # k.bias changes nothing


class Gated(Attention):
    """Begins as the identity: behind a gate of 0 no gradient reaches anything at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * super().forward(x)


class Indexer(nn.Linear):
    """The two best keys of every query."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) @ x.mT).topk(2, -1).indices


class OfTheBestKeys(Attention):
    """An indexer has no gradient by design."""

    def __init__(self) -> None:
        super().__init__()
        self.indexer = Indexer(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        best = torch.zeros(x.shape[0], x.shape[1], x.shape[1], dtype=torch.bool)
        return self.attend(x, x, best.scatter(-1, self.indexer(x), True)[:, None])


class OneKey(Attention):
    """One learned key: its weight is 1, and no query changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(x, self.key.expand(len(x), -1, -1), None)


class Additive(nn.Module):
    """Scores are sums of a number of the query and one of the key: without tanh between, the query's cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.score = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(8, 1)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        sums = self.q(query)[:, :, None] + self.k(memory)[:, None]
        return self.score(self.between(sums))[..., 0].softmax(-1) @ memory

    def between(self, sums: Tensor) -> Tensor:
        return sums.tanh()


def test_a_query_that_cancels_in_the_softmax() -> None:
    finding = one(LAW, altered(Additive, between=lambda _, sums: sums))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "the gradient of q.weight is a rounding error" in finding.evidence


@pytest.mark.parametrize("kind", [Attention, Additive, Gated, OfTheBestKeys, OneKey])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []


def test_what_is_frozen_needs_no_gradient() -> None:
    frozen = seeded(MoreForgotten)
    frozen.get_submodule("gate").requires_grad_(False)
    assert found(LAW, frozen) == []
    with pytest.raises(NotChecked, match="no parameters"):
        found(LAW, seeded(Attention).requires_grad_(False))


class OneNormForBoth(Attention):
    """It has a norm for the queries and one for the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_x, self.norm_memory = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(self.norm_x(x), self.norm_x(memory), None)


def test_a_part_that_is_called_in_the_place_of_another() -> None:
    finding = one(LAW, seeded(OneNormForBoth))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "norm_x is called twice: it stands where norm_memory should" in finding.evidence


class Scaled(Attention):
    """The attended values are added through two layers, of which these begin with 0."""

    zero = ("outer",)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        for name in self.zero:
            nn.init.zeros_(self.get_submodule(name).weight)

    def forward(self, x: Tensor) -> Tensor:
        out = self.attend(x, x, None)
        return x + self.outer(self.inner(out).relu()).tanh() * out


def test_weights_of_zeros_that_wait_for_one_another() -> None:
    finding = one(LAW, altered(Scaled, zero=("inner", "outer")))
    assert (finding.name, finding.severity) == ("zero-start", "bug")
    assert "inner.weight and outer.weight begin with 0 and stay 0" in finding.evidence
    assert found(LAW, seeded(Scaled)) == []


class ScalesInPlace(Attention):
    def forward(self, x: Tensor) -> Tensor:
        first, second = self.q(x).chunk(2, -1)
        first *= 0.5
        return self.attend(torch.cat([first, second], -1), x, None)


def test_a_call_that_raises_with_gradients() -> None:
    finding = one(LAW, seeded(ScalesInPlace))
    assert (finding.name, finding.severity) == ("does-not-run", "bug")
    assert "with gradients, which torch records" in finding.evidence
    assert finding.where.code == "first *= 0.5"
