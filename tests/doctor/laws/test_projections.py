"""Projections that are 0, shared or exchanged, and which key heads the query heads use."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor import diagnose
from headwise.doctor.laws import projections
from tests.doctor.laws.specimens import Attention, Cross
from tests.doctor.laws.styles import Einsum, Plain, SharedByHeads, assert_at
from tests.doctor.laws.told import names, told

# By hand.


def test_groupings() -> None:
    runs, turns = [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1]
    assert projections.grouping(runs, runs) == ("", False)
    assert projections.grouping([0, 1, 2], [0, 1, 2]) == projections.grouping([0, 0], [0, 0]) == ("", False)
    said, certain = projections.grouping(turns, turns)
    assert certain
    assert "use the key heads 0, 1, 0, 1, 0, 1 (tiled); expected 0, 0, 0, 1, 1, 1" in said
    said, certain = projections.grouping(runs, turns)
    assert certain
    assert "key heads 0, 0, 0, 1, 1, 1, but the value heads 0, 1, 0, 1, 0, 1; expected 0, 0, 0, 1, 1, 1" in said
    assert not projections.grouping([0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1])[1]


def test_heads_alike() -> None:
    x = torch.tensor([1.0, 2.0, 1.0])[None, :, None, None]
    assert projections.heads_alike(x, x + 1) == [[0, 2], [1]]
    assert projections.heads_alike(x, torch.arange(3.0)[None, :, None, None]) == [[0], [1], [2]]


# 0, or the same.


def changed(at: slice, *which: str, copied: bool = False) -> nn.Module:
    """An attention with rows of projections that are 0, or a copy of the first ones."""
    torch.manual_seed(0)
    module = Attention()
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


class Slices(Attention):
    """Splits the input, then projects each slice."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(self.split(x)) for layer in (self.q, self.k, self.v))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


class SlicesOnPurpose(Slices):
    """All heads use the same three matrices."""


def test_projections_of_zeros() -> None:
    for which in "qkv":
        (finding,) = told(projections, changed(slice(None), which))
        assert (finding.name, finding.severity) == ("projection-zero", "risk")
        assert f"{which}.weight" in finding.evidence
    both = changed(slice(None), "q", "k")
    assert names(projections, both) == [("projection-zero", "bug")]
    assert "argument-order" not in {x.name for x in diagnose(both).bugs}
    assert names(projections, changed(slice(4), "q")) == []


def test_heads_that_are_the_same() -> None:
    (finding,) = told(projections, changed(slice(8, None), "q", "k", "v", copied=True))
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert "0, 2; 1, 3 have the same" in finding.evidence
    assert names(projections, OneHead) == [("projection-reused", "bug")]
    (finding,) = told(projections, Slices)
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert "q.weight takes 4 of the input's numbers at a time: all 4 heads share it" in finding.evidence
    assert names(projections, SlicesOnPurpose) == names(projections, SharedByHeads) == []


# Groups.


class Grouped(nn.Module):
    """Six query heads, two key heads."""

    kv_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 6, self.kv_heads
        self.q_proj, self.o_proj = nn.Linear(24, 24), nn.Linear(24, 24)
        self.k_proj, self.v_proj = (nn.Linear(24, 4 * self.kv_heads) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q = self.q_proj(x).view(b, n, 6, 4).transpose(1, 2)
        k, v = (f(x).view(b, n, self.kv_heads, 4).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        return self.o_proj(self.attend(q, k, v).transpose(1, 2).reshape(b, n, m))

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


class Folded(Grouped):
    """[B, G, H / G * Q, D]"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q.reshape(len(q), 2, -1, 4) @ k.mT / 2).softmax(-1) @ v).view(q.shape)


class Fused(Grouped):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


class OneKeyHead(Grouped):
    kv_heads = 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v


def test_groups_of_query_heads() -> None:
    (finding,) = told(projections, Tiled)
    assert (finding.name, finding.severity) == ("gqa-order", "bug")
    assert_at(finding, Tiled, "scores = q @ k.mT")
    (finding,) = told(projections, TiledValues)
    assert (finding.name, finding.severity, finding.numbers["apart"]) == ("gqa-order", "bug", 2)
    assert_at(finding, TiledValues, "weights @ v.repeat")


# Weights and their names.


class CutsKeysFirst(Einsum):
    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        k, q, v = super().parts(qkv)
        return q, k, v


class Named(Plain):
    """Its name says in which order."""

    def __init__(self) -> None:
        super().__init__()
        del self.q, self.k, self.v
        self.kqv = nn.Linear(16, 48)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        k, q, v = (self.split(part) for part in self.kqv(x).chunk(3, dim=-1))
        return self.out(self.merge((q @ k.mT / 2).softmax(-1) @ v))


class PerHead(Einsum):
    """Query, key and value of each head side by side, as GPT-NeoX has them."""

    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.unflatten(-1, (self.num_heads, 3, self.head_dim)).unbind(3)


class UsesQueriesTwice(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(f(x)) for f in (self.q, self.q, self.v))
        return self.out(self.merge((q @ k.mT / 2).softmax(-1) @ v))


class KeysForQueries(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(f(x)) for f in (self.k, self.q, self.v))
        return self.out(self.merge((q @ k.mT / 2).softmax(-1) @ v))


class SharedKeysAndValues(Plain):
    """What is looked for is what is found (as in Reformer's and memory networks' keys)."""

    def __init__(self) -> None:
        super().__init__()
        del self.k, self.v
        self.kv = nn.Linear(16, 16)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, kv = self.split(self.q(x)), self.split(self.kv(memory))
        return self.out(self.merge((q @ kv.mT / 2).softmax(-1) @ kv))


def test_a_fused_weight_in_another_order_than_its_name() -> None:
    (finding,) = told(projections, CutsKeysFirst)
    assert (finding.name, finding.severity, dict(finding.numbers)) == ("qkv-order", "bug", {"q": 16, "k": 0, "v": 32})
    assert "is split in the order k, q, v:" in finding.evidence


def test_weights_that_are_used_for_another_thing() -> None:
    (finding,) = told(projections, UsesQueriesTwice)
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert finding.evidence == "queries and keys come from the same weight q.weight, and k.weight is never used"
    (finding,) = told(projections, KeysForQueries)
    assert (finding.name, finding.severity) == ("argument-order", "bug")
    assert "k.weight computes the queries; q.weight computes the keys" in finding.evidence


# Healthy.


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


class NoProjections(nn.Module):
    """Luong's: the states themselves."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query @ keys.mT).softmax(-1) @ keys


@pytest.mark.parametrize(
    "module",
    [
        *(Plain, Einsum, Cross, Grouped, Folded, Fused, OneKeyHead, Named, PerHead),
        *(SharedKeysAndValues, AbsorbedLatent, NoProjections),
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert names(projections, module) == []
