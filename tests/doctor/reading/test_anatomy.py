"""What traced operations amount to: one order for every style of code, and what stands where."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import Patient
from headwise.doctor.reading.anatomy import look

WIDTH, HEADS = 12, 3
D = WIDTH // HEADS


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = (q @ k.transpose(-2, -1) / math.sqrt(D)).masked_fill(~causal(q.shape[2]), -math.inf)
    return (s.softmax(-1) @ v).transpose(1, 2)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, n = q.shape[:2]
    q, k, v = (x.permute(2, 0, 1, 3).reshape(HEADS * b, n, D) for x in (q, k, v))
    s = torch.bmm(q / math.sqrt(D), k.mT).masked_fill(~causal(n), -math.inf)
    return (s.softmax(2) @ v).view(HEADS, b, n, D).permute(1, 2, 0, 3)


def sequence_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # [N, B, H, D]
    s = torch.einsum("ibhd,jbhd->bijh", q, k) / D**0.5
    s = s.masked_fill(~causal(len(q))[None, :, :, None], -math.inf)
    return torch.einsum("bijh,jbhd->bihd", s.softmax(2), v)


def keys_times_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """k qᵀ, so the softmax is over the rows, and the values meet its transpose."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = (k @ q.mT) / math.sqrt(D)
    return (v.mT @ s.masked_fill(~causal(q.shape[2]).T, -math.inf).softmax(dim=-2)).permute(0, 3, 1, 2)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    e = torch.exp(q @ k.mT / math.sqrt(D)) * causal(q.shape[2])
    return (e / e.sum(-1, keepdim=True) @ v).transpose(1, 2)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Styled(nn.Module):
    """Attention of three heads, written in a style: [B, N, H, D] of three of them."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.heads = attend, HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, D)) for f in (self.q, self.k, self.v))
        return self.out(self.attend(q, k, v).flatten(2))


@pytest.mark.parametrize("style", [matmul, heads_first, sequence_first, keys_times_queries, by_hand, fused])
def test_every_style_comes_to_the_same_order(style: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    module = Styled(style).eval()
    anatomy = Patient(module).see()
    (site,) = anatomy.sites
    x = anatomy.inputs.query
    n = x.shape[1]
    with torch.no_grad():
        q, k, v = (f(x).unflatten(-1, (HEADS, D)).transpose(1, 2).double() for f in (module.q, module.k, module.v))
    products = q @ k.mT
    scores = products / math.sqrt(D)
    weights = scores.masked_fill(~causal(n), -math.inf).softmax(-1)
    if style is not by_hand:  # its mask comes after the exponential
        scores = scores.masked_fill(~causal(n), -math.inf)
    before = D**-0.5 if style in (heads_first, fused) else 1.0  # by what queries and keys were divided before they met

    assert site.layout.right
    assert site.grid.element.shape == (len(x), HEADS, n, n)
    assert site.queries_left == (style is not keys_times_queries)
    assert site.softmax.by_hand == (style is by_hand)
    close = {"scores": scores, "weights": weights, "weights_at_values": weights, "products": products * before}
    for name, expected in close.items():
        torch.testing.assert_close(getattr(site, name), expected, atol=1e-5, rtol=1e-5, msg=name)
    for name, expected in (("q", q), ("k", k), ("v", v)):
        torch.testing.assert_close(site.raw(name), expected, atol=1e-5, rtol=1e-5)
        assert site.columns(name).remainder(1 << 32).tolist() == torch.arange(WIDTH).view(HEADS, D).tolist()
        assert site.placement(name).right
    torch.testing.assert_close(site.v.double(), v, atol=1e-5, rtol=1e-5)
    assert [seed.name for side in "qkv" for seed in site.projections[side]] == ["q.weight", "k.weight", "v.weight"]
    assert site.output[0].name == "out.weight"


def test_a_module_is_looked_at_in_train_mode_on_a_copy() -> None:
    module = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).eval()
    patient = Patient(module)
    runs = []
    for seed in (1, 2):  # dropout falls alike whatever the generator is at
        torch.manual_seed(seed)
        (site,) = look(patient, train=True).sites
        runs.append(site.weights_at_values)
    assert torch.equal(*runs)
    assert any(step.noise for step in site.trace.steps)
    assert not any(step.noise for step in site.steps_before)
    assert not any(step.noise for step in patient.see().sites[0].trace.steps)
    assert not module.training
    assert not patient.module.training
