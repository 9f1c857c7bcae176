"""Parameters that no gradient reaches, and weights that stay 0."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, found, one, seeded

LAW = "gradients"


class ForgetsTheOutput(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.merge(self.normalise(self.fill(self.score(q, k), allowed)) @ v)


class ThrowsAway(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        self.gate(x)
        return super().forward(x)


class Optional(Attention):
    def __init__(self, gated: bool = False) -> None:
        super().__init__()
        self.gated = gated
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gate(x) if self.gated else super().forward(x)


class ByFlag(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor, use_gate: bool = False) -> Tensor:
        return super().forward(x) * self.gate(x) if use_gate else super().forward(x)


class DetachesWeights(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).detach()


class NoGradient(Attention):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class ScaleOfNoUse(Attention):
    """A gain for every feature that is not applied."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16))


class DetachesInTraining(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        if self.training:
            k = k.detach()
        return self.out(self.merge(self.normalise(self.fill(self.score(q, k), allowed)) @ v))


class DetachesKeys(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)).detach(), self.split(self.v(memory))
        return self.out(self.merge(self.normalise(self.fill(self.score(q, k), allowed)) @ v))


def test_a_gain_that_is_not_applied() -> None:
    finding = one(LAW, seeded(ScaleOfNoUse))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")


def test_keys_that_are_detached() -> None:
    for module, said in ((DetachesKeys, "k.weight"), (DetachesInTraining, "in train mode")):
        finding = one(LAW, seeded(module))
        assert (finding.name, finding.severity) == ("gradient-blocked", "bug")
        assert said in finding.evidence


def test_a_projection_that_is_forgotten() -> None:
    finding = one(LAW, seeded(ForgetsTheOutput))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert finding.numbers["weights"] == 16 * 16 + 16
    assert "reaches out.weight [16, 16] and out.bias [16]: forward does not use out" in finding.evidence
    assert finding.where.file.endswith("specimens.py")
    assert "self.out" in finding.where.code


def test_a_result_that_is_thrown_away() -> None:
    finding = one(LAW, seeded(ThrowsAway))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "forward reads it, and nothing that it returns depends on it" in finding.evidence


def test_what_an_option_uses_is_a_risk() -> None:
    finding = one(LAW, seeded(Optional))
    assert (finding.name, finding.severity) == ("unused-parameter", "risk")
    assert found(LAW, seeded(Optional, gated=True)) == []
    assert found(LAW, seeded(ByFlag)) == []  # the flag is turned to see


def test_gradients_that_are_cut_off() -> None:
    finding = one(LAW, seeded(DetachesWeights))
    assert (finding.name, finding.severity) == ("gradient-blocked", "bug")
    assert finding.numbers["blocked"] == 3  # of q both, of k the weight: its bias changes nothing anyway
    assert finding.numbers["change"] > 0.01
    blind = one(LAW, seeded(NoGradient))
    assert (blind.name, blind.numbers["blocked"]) == ("gradient-blocked", 8)


class Gated(Attention):
    """Begins as the identity: behind a gate of 0 no gradient reaches anything at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * super().forward(x)


def test_a_gate_that_begins_at_zero_hides_nothing() -> None:
    assert found(LAW, seeded(Gated)) == []


class Indexer(nn.Module):
    """The two best keys of every query."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).mT).topk(2, -1).indices


class OfTheBestKeys(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.indexer = Indexer()

    def forward(self, x: Tensor) -> Tensor:
        best = torch.zeros(x.shape[0], x.shape[1], x.shape[1], dtype=torch.bool)
        return self.attend(x, x, best.scatter(-1, self.indexer(x), True)[:, None])


def test_an_indexer_has_no_gradient_by_design() -> None:
    assert found(LAW, seeded(OfTheBestKeys)) == []


def test_healthy_ones() -> None:
    assert found(LAW, seeded(Attention)) == []
    frozen = seeded(ForgetsTheOutput)
    frozen.get_submodule("out").requires_grad_(False)
    assert found(LAW, frozen) == []
    with pytest.raises(NotChecked, match="no parameters"):
        found(LAW, seeded(Attention).requires_grad_(False))


class TwoAttentions(nn.Module):
    """A decoder layer: x attends to itself, then to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Attention()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.own.attend(x, x, None)
        return x + self.second().attend(x, memory, None)

    def second(self) -> Attention:
        return self.cross


class TakesTheFirstTwice(TwoAttentions):
    def second(self) -> Attention:
        return self.own


def test_a_part_that_its_holder_does_not_use_is_one_finding() -> None:
    finding = one(LAW, seeded(TakesTheFirstTwice))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "forward does not use cross" in finding.evidence
    assert found(LAW, seeded(TwoAttentions)) == []


class Global(Attention):
    """attention_mask: [B, N]: 0 = padding, 1 = a token, 2 = a token whose queries have a projection of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.q_global = nn.Linear(16, 16)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            attention_mask = torch.ones(x.shape[:2], dtype=torch.int64)
        is_global = attention_mask == 2
        q = torch.where(is_global[..., None], self.q_global(x), self.q(x))
        k, v = self.split(self.k(x)), self.split(self.v(x))
        scores = self.score(self.split(q), k).masked_fill((attention_mask == 0)[:, None, None], -1e4)
        return self.out(self.merge(scores.softmax(-1) @ v))


def test_what_a_code_of_the_mask_turns_on_is_used() -> None:
    assert found(LAW, seeded(Global)) == []


class TwoNorms(Attention):
    """Of the queries and of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_x, self.norm_memory = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(self.norm_x(x), self.norm_memory(memory), None)


class OneNormForBoth(TwoNorms):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(self.norm_x(x), self.norm_x(memory), None)


class OneNormIsLeft(TwoNorms):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(self.norm_x(x), memory, None)


def test_a_part_that_is_called_in_the_place_of_another() -> None:
    finding = one(LAW, seeded(OneNormForBoth))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "norm_x is called twice: it stands where norm_memory should" in finding.evidence
    assert one(LAW, seeded(OneNormIsLeft)).severity == "risk"
    assert found(LAW, seeded(TwoNorms)) == []


class Pointer(nn.Module):
    """Log probabilities of the keys, all of which the wrong polarity of the mask hides."""

    def __init__(self) -> None:
        super().__init__()
        self.of_key, self.of_query, self.top = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, keys: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        logits = self.top((self.of_key(keys) + self.of_query(query)).tanh()).squeeze(-1)
        return logits.masked_fill(mask, -10000).log_softmax(dim=-1)


class OneKey(Attention):
    """One learned key: its weight is 1, and no query changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(x, self.key.expand(len(x), -1, -1), None)


def test_a_path_with_a_gradient_of_0_proves_nothing() -> None:
    assert found(LAW, seeded(Pointer)) == []
    assert found(LAW, seeded(OneKey)) == []


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


class BothZero(Scaled):
    zero = ("inner", "outer")


def test_weights_of_zeros_that_wait_for_one_another() -> None:
    finding = one(LAW, seeded(BothZero))
    assert (finding.name, finding.severity) == ("zero-start", "bug")
    assert "inner.weight and outer.weight begin with 0 and stay 0" in finding.evidence
    assert found(LAW, seeded(Scaled)) == []
