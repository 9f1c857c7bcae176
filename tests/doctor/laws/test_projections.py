"""Projections that are 0, shared or exchanged, and which key heads the query heads use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor import diagnose
from tests.doctor.laws.specimens import Attention, Cross, found, one, seeded
from tests.doctor.laws.styles import Einsum, Plain, SharedByHeads, Slices, assert_at

torch.manual_seed(0)  # for the modules that are made here


def changed(at: slice, *which: str, copied: bool = False) -> nn.Module:
    """An attention with rows of projections that are 0, or a copy of the first ones."""
    module = seeded(Attention)
    for part in (getattr(module, name) for name in which):
        for x in (part.weight.data, part.bias.data):
            x[at] = x[:8] if copied else 0
    return module


class OneHead(nn.ModuleList):
    """A list of heads that holds the same one twice."""

    def __init__(self) -> None:
        head = Plain(16, 2)
        super().__init__([head, head])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self], -1)


class Loop(Plain):
    """A loop over heads that projects its input again and again."""

    def forward(self, x: Tensor) -> Tensor:
        heads, q = [], x
        for _ in range(2):
            q = self.q(q)
            heads.append(self.score(q, self.k(x)).softmax(-1) @ self.v(x))
        return torch.cat(heads, -1)


def test_projections_of_zeros() -> None:
    finding = one("projections", changed(slice(None), "k"))
    assert (finding.name, finding.severity) == ("projection-zero", "risk")
    assert "k.weight" in finding.evidence
    both = changed(slice(None), "q", "k")
    assert one("projections", both).severity == "bug"
    assert "argument-order" not in {x.name for x in diagnose(both).bugs}
    assert found("projections", changed(slice(4), "q")) == []


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (changed(slice(8, None), "q", "k", "v", copied=True), "0, 2; 1, 3 have the same"),
        (OneHead, "heads compute identical numbers"),
        (Slices, "q.weight takes 4 of the input's numbers at a time: all 4 heads share it"),
        (Loop, "q.weight is applied to what it has made itself"),
    ],
)
def test_heads_that_share_a_projection(module: Any, said: str) -> None:
    finding = one("projections", module)
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert said in finding.evidence


# Groups.


class Grouped(nn.Module):
    """Six query heads, two key heads."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 6, 2
        self.q_proj, self.o_proj = nn.Linear(24, 24), nn.Linear(24, 24)
        self.k_proj, self.v_proj = (nn.Linear(24, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(3, dim=1) for x in (k, v))
        return (q @ k.mT / 2).softmax(-1) @ v


class Tiled(Grouped):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)
        scores = q @ k.mT / 2
        return scores.softmax(-1) @ v


class TiledValues(Grouped):
    """The keys in blocks, the values in turn."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.repeat_interleave(3, dim=1).mT / 2).softmax(-1)
        return weights @ v.repeat(1, 3, 1, 1)


class Fused(Grouped):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def test_groups_of_query_heads() -> None:
    finding = one("projections", Tiled)
    assert (finding.name, finding.severity) == ("gqa-order", "bug")
    assert "use the key heads 0, 1, 0, 1, 0, 1 (tiled); expected 0, 0, 0, 1, 1, 1" in finding.evidence
    assert_at(finding, Tiled, "scores = q @ k.mT")
    finding = one("projections", TiledValues)
    assert (finding.name, finding.severity) == ("gqa-order", "bug")
    assert "key heads 0, 0, 0, 1, 1, 1, but the value heads 0, 1, 0, 1, 0, 1; expected" in finding.evidence
    assert_at(finding, TiledValues, "weights @ v.repeat")


# Weights and their names.


class Uses(Attention):
    """Which projections make queries, keys and values."""

    def __init__(self, *which: str) -> None:
        super().__init__()
        self.which = which

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(getattr(self, name)(x)) for name in self.which)
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


class SharedKeysAndValues(Uses):
    """What is looked for is what is found (as in Reformer's and memory networks' keys)."""

    def __init__(self) -> None:
        super().__init__("q", "kv", "kv")
        self.kv = self.k
        del self.k, self.v


def keys_first(qkv: Tensor) -> tuple[Tensor, ...]:
    k, q, v = qkv.unflatten(-1, (3, 4, 4)).unbind(2)
    return q, k, v


def test_a_fused_weight_in_another_order_than_its_name() -> None:
    finding = one("projections", Einsum(parts=keys_first))
    assert (finding.name, finding.severity, dict(finding.numbers)) == ("qkv-order", "bug", {"q": 16, "k": 0, "v": 32})
    assert "is split in the order k, q, v:" in finding.evidence


def test_weights_that_are_used_for_another_thing() -> None:
    finding = one("projections", Uses("q", "q", "v"))
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert finding.evidence == "queries and keys come from the same weight q.weight, and k.weight is never used"
    finding = one("projections", Uses("k", "q", "v"))
    assert (finding.name, finding.severity) == ("argument-order", "bug")
    assert "k.weight computes the queries; q.weight computes the keys" in finding.evidence


class AbsorbedLatent(nn.Module):
    """Multi-head latent attention: the latent is the keys and the values, and a small rotated part are keys only."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.q_rope = nn.Linear(16, 4 * 8), nn.Linear(16, 4 * 4)
        self.latent_and_rope = nn.Linear(16, 8 + 4)
        self.out = nn.Linear(4 * 8, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, q_rope = self.q(x).unflatten(-1, (4, 8)), self.q_rope(x).unflatten(-1, (4, 4))
        latent, rope = self.latent_and_rope(x).split([8, 4], dim=-1)
        scores = torch.einsum("bqhd,bkd->bhqk", q, latent) + torch.einsum("bqhd,bkd->bhqk", q_rope, rope)
        return self.out(torch.einsum("bhqk,bkd->bqhd", (scores / 12**0.5).softmax(-1), latent).flatten(2))


@pytest.mark.parametrize(
    "module", [Plain, Einsum, Cross, Grouped, Fused, SharedKeysAndValues, AbsorbedLatent, SharedByHeads]
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("projections", module) == []
