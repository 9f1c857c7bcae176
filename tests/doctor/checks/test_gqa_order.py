"""Which key head each query head reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain, assert_at


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


class TiledEinsum(Grouped):
    """Query heads cut as [3, 2] where [2, 3] is meant."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.unflatten(1, (3, 2))
        weights = (torch.einsum("brgqd,bgkd->brgqk", q, k) / 2).softmax(-1)
        return torch.einsum("brgqk,bgkd->brgqd", weights, v).flatten(1, 2)


class Uneven(Grouped):
    """Four query heads read the first key head, two the second."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = torch.tensor([0, 0, 0, 0, 1, 1])
        return (q @ k[:, heads].mT / 2).softmax(-1) @ v[:, heads]


class TiledValues(Grouped):
    """The keys in blocks, the values in turn."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.repeat_interleave(3, dim=1).mT / 2).softmax(-1)
        return weights @ v.repeat(1, 3, 1, 1)


class TiledKeys(Grouped):
    """Both expanded, the new dimension of the keys before the heads."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = k[:, None].expand(-1, 3, -1, -1, -1).reshape(q.shape)
        v = v[:, :, None].expand(-1, -1, 3, -1, -1).reshape(q.shape)
        return functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("module", [TiledValues, TiledKeys])
def test_keys_and_values_in_different_orders(module: type[nn.Module]) -> None:
    finding = one("gqa_order", seeded(module))
    assert (finding.name, finding.severity, finding.numbers["apart"]) == ("gqa-order", "bug", 2)
    keys, values = ("0, 0, 0, 1, 1, 1", "0, 1, 0, 1, 0, 1")[:: 1 if module is TiledValues else -1]
    assert f"use the key heads {keys}, but the value heads {values}; expected 0, 0, 0, 1, 1, 1" in finding.evidence
    assert_at(finding, module, "weights @ v.repeat" if module is TiledValues else "scaled_dot_product_attention")


@pytest.mark.parametrize("module", [Tiled, TiledEinsum])
def test_tiled_heads(module: type[nn.Module]) -> None:
    finding = one("gqa_order", seeded(module))
    assert (finding.name, finding.severity) == ("gqa-order", "bug")
    assert "6 query heads use the key heads 0, 1, 0, 1, 0, 1 (tiled); expected 0, 0, 0, 1, 1, 1" in finding.evidence
    assert_at(finding, module, "scores = q @ k.mT" if module is Tiled else "brgqd,bgkd->brgqk")


def test_another_order_is_a_risk() -> None:
    finding = one("gqa_order", seeded(Uneven))
    assert (finding.name, finding.severity) == ("gqa-order", "risk")
    assert "0, 0, 0, 0, 1, 1; expected 0, 0, 0, 1, 1, 1" in finding.evidence


# Healthy.


class Expanded(Grouped):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(-1, -1, 3, -1, -1).reshape(q.shape) for x in (k, v))
        return functional.scaled_dot_product_attention(q, k, v)


class Fused(Grouped):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


class Folded(Grouped):
    """[B, G, H / G * Q, D]"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q.reshape(len(q), 2, -1, 4) @ k.mT / 2).softmax(-1) @ v).view(q.shape)


class InEinsum(Grouped):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (torch.einsum("bgrqd,bgkd->bgrqk", q.unflatten(1, (2, 3)), k) / 2).softmax(-1)
        return torch.einsum("bgrqk,bgkd->bgrqd", weights, v).flatten(1, 2)


class OneKeyHead(Grouped):
    kv_heads = 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v


@pytest.mark.parametrize("module", [Grouped, Expanded, Fused, Folded, InEinsum, OneKeyHead, Plain])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("gqa_order", seeded(module)) == []
