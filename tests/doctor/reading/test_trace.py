"""One forward as a whole: fused attention is made to run as its parts, and tracing leaves everything else as it was."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.reading import marks
from headwise.doctor.reading.trace import trace
from tests.doctor.reading.following import B, M, N, follow, inputs, softmax_of


def test_fused_attention_is_seen_as_its_parts() -> None:
    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = inputs(3)
    run = follow(fused, q, k, v)
    found = softmax_of(run)
    expected = (q @ k.mT / math.sqrt(M)).masked_fill(~torch.ones(N, N).bool().tril(), -math.inf)
    assert torch.allclose(found.scores, expected, atol=1e-6)
    assert [seed.kind for seed in run.seeds].count("product") == 2
    assert torch.equal(run.out.token, marks.token(0, (B, N))[..., None].expand(B, N, M))
    assert torch.allclose(run.result, functional.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-6)


def test_torchs_layer_is_seen_as_its_parts_and_its_fast_path_is_left_as_it_was() -> None:
    layer = nn.MultiheadAttention(M, 2, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    run = follow(lambda x: layer(x, x, x, need_weights=False)[0], *inputs(), module=layer)
    assert softmax_of(run).scores.shape[-2:] == (N, N)
    assert torch.backends.mha.get_fastpath_enabled() == before
    names = [seed.name for seed in run.seeds if seed.kind == "projection"]
    assert names == ["in_proj_weight", "out_proj.weight"]


def test_tracing_changes_no_result() -> None:
    layer = nn.MultiheadAttention(M, 2, batch_first=True).eval()
    x = inputs()[0]
    run = trace(layer, (x,), lambda: layer(x, x, x), lambda y: y[0])
    assert torch.allclose(run.result[0], layer(x, x, x)[0], atol=1e-6)
    assert all(not seed.value.requires_grad for seed in run.seeds if seed.kind != "parameter")
