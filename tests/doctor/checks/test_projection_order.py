"""Fused weights cut in another order than theirs, one weight used twice, names exchanged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded
from tests.doctor.checks.styles import Einsum, Plain, SharedByHeads, assert_at


class CutsKeysFirst(Einsum):
    def forward(self, x: Tensor) -> Tensor:
        fused = self.qkv(x)
        k, q, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in fused.chunk(3, dim=-1))
        return self.proj(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


class CutsValuesFirst(Einsum):
    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        v, q, k = super().parts(qkv)
        return q, k, v


class CutsKeyValueWrong(Plain):
    """Keys and values in one weight, as many decoders have it."""

    def __init__(self) -> None:
        super().__init__()
        del self.k, self.v
        self.to_kv = nn.Linear(16, 32)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        v, k = (self.split(part) for part in self.to_kv(memory).split(16, dim=-1))
        return self.out(self.merge((self.split(self.q(x)) @ k.mT / 2).softmax(-1) @ v))


@pytest.mark.parametrize(
    ("module", "order", "numbers"),
    [
        (CutsKeysFirst, "k, q, v", {"q": 16, "k": 0, "v": 32}),
        (CutsValuesFirst, "v, q, k", {"q": 16, "k": 32, "v": 0}),
        (CutsKeyValueWrong, "v, k", {"k": 16, "v": 0}),
    ],
)
def test_a_fused_weight_cut_in_another_order(module: type[nn.Module], order: str, numbers: dict[str, float]) -> None:
    finding = one("projection_order", seeded(module))
    assert (finding.name, finding.severity) == ("qkv-order", "bug")
    assert f"is split in the order {order}:" in finding.evidence
    assert finding.numbers == numbers


class OtherOrderByName(nn.Module):
    """The weight's name states no order, and the code names its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        v, k, q = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.fused(x).chunk(3, dim=-1))
        return self.proj(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_an_order_that_only_the_code_states() -> None:
    assert found("projection_order", seeded(OtherOrderByName)) == []


def test_the_line_of_the_fused_projection() -> None:
    assert_at(one("projection_order", seeded(CutsKeysFirst)), CutsKeysFirst, "fused = self.qkv(x)")


# One weight for two.


class UsesQueriesTwice(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, v = self.split(self.q(x)), self.split(self.v(x))
        k = self.split(self.q(x))
        return self.out(self.merge((q @ k.mT / 2).softmax(-1) @ v))


class UsesKeysForValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_heads = 2
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bnm,mo->bno", x, w).unflatten(-1, (2, 4)) for w in (self.w_q, self.w_k, self.w_k))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2) @ self.w_o


def test_queries_used_for_keys() -> None:
    finding = one("projection_order", seeded(UsesQueriesTwice))
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert finding.evidence == "queries and keys come from the same weight q.weight, and k.weight is never used"
    assert_at(finding, UsesQueriesTwice, "k = self.split(self.q(x))")


def test_keys_used_for_values() -> None:
    finding = one("projection_order", seeded(UsesKeysForValues))
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert "keys and values come from the same weight w_k, and w_v is never used" in finding.evidence


# Names exchanged.


class KeysForQueries(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q = self.split(self.k(x))
        k, v = self.split(self.q(x)), self.split(self.v(x))
        return self.out(self.merge((q @ k.mT / 2).softmax(-1) @ v))


class ValuesForKeys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.value(x), self.key(x)
        return (q @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v


def test_queries_and_keys_exchanged() -> None:
    finding = one("projection_order", seeded(KeysForQueries))
    assert (finding.name, finding.severity) == ("argument-order", "bug")
    assert "k.weight computes the queries; q.weight computes the keys" in finding.evidence
    assert_at(finding, KeysForQueries, "q = self.split(self.k(x))")


def test_keys_and_values_exchanged() -> None:
    finding = one("projection_order", seeded(ValuesForKeys))
    assert (finding.name, finding.severity) == ("argument-order", "bug")
    assert "value.weight computes the keys; key.weight computes the values" in finding.evidence
    assert_at(finding, ValuesForKeys, "q, k, v = self.query(x)")


# Healthy.


class PerHead(Einsum):
    """Query, key and value of each head side by side, as GPT-NeoX has them."""

    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.unflatten(-1, (self.num_heads, 3, self.head_dim)).unbind(3)


class Named(Plain):
    """Its name says in which order."""

    def __init__(self) -> None:
        super().__init__()
        del self.q, self.k, self.v
        self.kqv = nn.Linear(16, 48)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        k, q, v = (self.split(part) for part in self.kqv(x).chunk(3, dim=-1))
        return self.out(self.merge((q @ k.mT / 2).softmax(-1) @ v))


class NoProjections(nn.Module):
    """Luong's: the states themselves."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query @ keys.mT).softmax(-1) @ keys


class Unnamed(nn.Module):
    """A list of layers that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f, x in zip(self.linears, (query, key, value), strict=False)
        )
        return self.linears[-1](((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("module", [Plain, Einsum, PerHead, Named, SharedByHeads, NoProjections, Unnamed, Cross])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("projection_order", seeded(module)) == []


class SharedKeysAndValues(Plain):
    """What is looked for is what is found (as in Reformer's and memory networks' keys)."""

    def __init__(self) -> None:
        super().__init__()
        del self.k, self.v
        self.kv = nn.Linear(16, 16)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, kv = self.split(self.q(x)), self.split(self.kv(memory))
        return self.out(self.merge((q @ kv.mT / 2).softmax(-1) @ kv))


class SharedQueriesAndKeys(Plain):
    def __init__(self) -> None:
        super().__init__()
        del self.q, self.k
        self.qk = nn.Linear(16, 16)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        qk = self.split(self.qk(x))
        return self.out(self.merge((qk @ qk.mT / 2).softmax(-1) @ self.split(self.v(memory))))


def test_one_weight_for_two_by_design_is_no_bug() -> None:
    assert found("projection_order", seeded(SharedKeysAndValues)) == []
    assert [x.severity for x in found("projection_order", seeded(SharedQueriesAndKeys))] == ["risk"]


class Thirds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.transpose(1, 2) for y in self.parts(self.qkv(x)))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def parts(self, x: Tensor) -> list[Tensor]:
        return [y.view(*x.shape[:2], 4, 4) for y in x.chunk(3, -1)]


class ByHeadInThirds(Thirds):
    """The rows of qkv.weight are [num_heads, 3, head_size]."""


class ByHead(ByHeadInThirds):
    """The rows of qkv.weight are [num_heads, 3, head_size]."""

    def parts(self, x: Tensor) -> list[Tensor]:
        return list(x.view(*x.shape[:2], 4, 12).chunk(3, -1))


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Megatron's layout: the rows of each head are [query | key | value]."""
    return torch.cat([x.view(4, -1, x.shape[-1]) for x in (q, k, v)], 1).flatten(0, 1)


def thirds(weight: Tensor) -> Tensor:
    """Converts Megatron's layout, where the rows of each head are [query | key | value]."""
    return torch.cat(weight.unflatten(0, (4, 3, -1)).unbind(1)).flatten(0, 1)


class BuiltByHead(Thirds):
    """A function of its builder says how it lays out its weight."""

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> nn.Module:
        module = cls()
        module.qkv.weight.data.copy_(fused(q, k, v))
        return module


class Converted(Thirds):
    """Its weight is converted where it is loaded."""

    def load(self, weight: Tensor) -> None:
        self.qkv.weight.data.copy_(thirds(weight))


def test_a_layout_that_a_builder_documents() -> None:
    finding = one("projection_order", seeded(BuiltByHead))
    assert (finding.name, finding.severity) == ("qkv-order", "bug")
    assert found("projection_order", seeded(Converted)) == []
    assert found("projection_order", seeded(Thirds)) == []


def test_a_documented_layout() -> None:
    finding = one("projection_order", seeded(ByHeadInThirds))
    assert (finding.name, finding.severity) == ("qkv-order", "bug")
    assert "[num_heads, 3, head_size], head by head; it is split in thirds" in finding.evidence
    assert found("projection_order", seeded(ByHead)) == []


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


def test_a_latent_before_the_rotated_keys_has_no_wrong_order() -> None:
    assert not [finding for finding in found("projection_order", seeded(AbsorbedLatent)) if finding.name == "qkv-order"]


class LowRankInAnothersPlace(Attention):
    """LoRA: what is learned for the values is added to the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.lora_A_v, self.lora_B_v = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        k = self.k(memory) + self.lora_B_v(self.lora_A_v(memory))
        scores = self.fill(self.score(self.split(self.q(x)), self.split(k)), allowed)
        return self.out(self.merge(scores.softmax(-1) @ self.split(self.v(memory))))


def test_a_low_rank_update_of_another_projection() -> None:
    assert "bug" in {x.severity for x in found("projection_order", seeded(LowRankInAnothersPlace))}
