"""A tiny transformer whose attention is written out in float64, and the records of the same attention."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import make_call
from headwise.records import AttentionRecord, Site


def weights_of(q: Tensor, k: Tensor, mask: masks.Mask | None = None, sinks: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √D) of the whole matrix, written out: not the library's own scores. 0 for an empty row."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        s = s.masked_fill(~mask.to_bool(*s.shape[2:]), -math.inf)
    e = torch.exp(s)
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks)[:, None, None]
    return e / total.masked_fill(total == 0, 1.0)


@dataclasses.dataclass
class Layer:
    """One attention computation: what autograd says of it, and its record."""

    weights: Tensor  # A [B, H, Q, K]
    weights_grad: Tensor  # dL/dA
    output: Tensor  # O [B, H, Q, E]
    output_grad: Tensor  # dL/dO
    values: Tensor  # [B, H, K, E], repeated for the query heads
    projection: Tensor  # W_O [H, E, M]
    record: AttentionRecord


class Attention:
    """softmax(x W_Q (y W_K)ᵀ) y W_V W_O, four query heads on two key heads."""

    def __init__(self, width: int = 6, heads: int = 4, key_heads: int = 2, head_width: int = 3) -> None:
        self.q = torch.randn(heads, width, head_width, dtype=torch.float64)
        self.k = torch.randn(key_heads, width, head_width, dtype=torch.float64)
        self.v = torch.randn(key_heads, width, head_width, dtype=torch.float64)
        self.out = torch.randn(heads, head_width, width, dtype=torch.float64) / 4

    def __call__(self, x: Tensor, y: Tensor, mask: masks.Mask | None, seen: list[dict[str, Any]]) -> Tensor:
        q, k, v = (torch.einsum("bnm,hmd->bhnd", t, w) for t, w in ((x, self.q), (y, self.k), (y, self.v)))
        weights = weights_of(q, k, mask)
        values = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        output = torch.einsum("bhqk,bhke->bhqe", weights, values)
        weights.retain_grad()
        output.retain_grad()
        seen.append({"q": q, "k": k, "v": v, "A": weights, "O": output, "values": values, "W": self.out, "mask": mask})
        return torch.einsum("bhqe,hem->bqm", output, self.out)


def layers_of(seen: list[dict[str, Any]], kind: str = "self", prefix: str = "layer") -> list[Layer]:
    """What was seen, after backward(), as Layers."""
    found = []
    for i, x in enumerate(seen):
        record = AttentionRecord(
            make_call(x["q"].detach(), x["k"].detach(), x["v"].detach(), mask=x["mask"]),
            values=True,
            site=Site(f"{prefix}.{i}", i, kind, False, 4, 2),
        )
        record.extras.grad, record.extras.output_weight = x["O"].grad, x["W"]
        a, o = x["A"], x["O"]
        found.append(Layer(a.detach(), a.grad, o.detach(), o.grad, x["values"].detach(), x["W"], record))
    return found


def tiny_encoder(n_layers: int = 3, length: int = 7, mask: masks.Mask | None = None, batch: int = 2) -> list[Layer]:
    """The layers of an encoder after backward()."""
    x = torch.randn(batch, length, 6, dtype=torch.float64, requires_grad=True)
    seen: list[dict[str, Any]] = []
    for _ in range(n_layers):
        x = x + torch.tanh(Attention()(x, x, mask, seen))
    x.square().sum().backward()
    return layers_of(seen)


def tiny_records(n_layers: int, length: int, heads: int = 4, mask: masks.Mask | None = None) -> list[AttentionRecord]:
    """Float32 records of unrelated layers, with values and gradients that are random."""
    found = []
    for _ in range(n_layers):
        q, k, v = torch.randn(1, heads, length, 4), torch.randn(1, 2, length, 4), torch.randn(1, 2, length, 4)
        found.append(AttentionRecord(make_call(q, k, v, mask=mask), values=True))
        found[-1].extras.grad = torch.randn(1, heads, length, 4)
    return found


def by_hand() -> AttentionRecord:
    """Two tokens, one head: A = [[1/2, 1/2], [1/4, 3/4]]."""
    q = torch.tensor([[0.0], [1.0]], dtype=torch.float64)[None, None]
    k = torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64)[None, None]
    return headwise.attention(q, k, k, record=True)[1]


def attending(weights: Tensor) -> AttentionRecord:
    """A record with just these weights [H, Q, K] (or [B, H, Q, K]), by a bias of their logarithms."""
    weights = weights if weights.ndim == 4 else weights[None]
    q = torch.zeros(*weights.shape[:3], 1, dtype=torch.float64)
    k = torch.zeros(*weights.shape[:2], weights.shape[3], 1, dtype=torch.float64)
    return AttentionRecord(make_call(q, k, k, bias=weights.double().log()))
