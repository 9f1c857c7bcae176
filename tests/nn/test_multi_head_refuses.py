"""What MultiHeadAttention refuses, at construction and at the call: every message names the argument."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import masks
from headwise.errors import ArgumentError, CacheError, DtypeError, MaskError, ShapeError
from headwise.nn import Cache, MultiHeadAttention
from headwise.nn.positions import Alibi, Rope, ShawRelative, T5Buckets

B, Q, K, M, H = 2, 5, 6, 16, 4
SHARED = {"projection": "shared"}
WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"dim": 0}, "dim: expected a whole number of at least 1. Received: dim=0"),
    ({"num_heads": 0}, "num_heads: expected a whole number of at least 1. Received: num_heads=0"),
    ({"num_heads": -4}, "num_heads: expected a whole number of at least 1. Received: num_heads=-4"),
    ({"num_heads": 4.0}, "num_heads: expected a whole number"),
    ({"num_heads": 3}, "dim: expected a multiple of num_heads=3. Received: dim=16"),
    ({"num_kv_heads": 3}, "num_heads: expected a multiple of num_kv_heads=3. Received: num_heads=4"),
    ({"num_kv_heads": 0}, "num_kv_heads: expected a whole number"),
    ({"num_kv_heads": 8}, "num_heads: expected a multiple of num_kv_heads=8. Received: num_heads=4"),
    ({"head_dim": 0}, "head_dim: expected a whole number"),
    ({"value_head_dim": -1}, "value_head_dim: expected a whole number"),
    ({"kdim": 0}, "kdim: expected a whole number"),
    ({"vdim": 1.5}, "vdim: expected a whole number"),
    ({"qk_norm": "batch"}, "qk_norm: expected one of None, 'rms', 'layer'. Received: qk_norm='batch'"),
    ({"softcap": 0.0}, "softcap must be .* above 0, or None. Received: softcap=0.0"),
    ({"scale": math.nan}, "scale must be a finite number"),
    ({"dropout": 1.0}, r"dropout: expected a probability in \[0, 1\). Received: dropout=1.0"),
    ({"dropout": -0.1}, r"dropout: expected a probability in \[0, 1\). Received: dropout=-0.1"),
    ({"projection": "none"}, "projection: expected one of 'per_head', 'shared'. Received: projection='none'"),
    ({"kernel": "fast"}, "kernel: expected one of 'auto'.*'sdpa'.*. Received: kernel='fast'"),
    ({"positions": "rope"}, "positions: expected a scheme of headwise.nn.positions. Received: positions=str"),
    ({"positions": Rope(6)}, "positions: expected a module with head_dim=6. Received: head_dim=4"),
    ({"positions": Alibi(8)}, "positions: expected a module with num_heads=8. Received: num_heads=4"),
    ({"positions": ShawRelative(4, 2, values=True), "dropout": 0.5}, "dropout: expected 0 .*. Received: dropout=0.5"),
    ({**SHARED, "num_kv_heads": 2}, 'num_kv_heads: projection="shared" .* expected num_kv_heads=4'),
    ({**SHARED, "head_dim": 6}, 'head_dim: projection="shared"'),
    ({**SHARED, "value_head_dim": 6}, 'value_head_dim: projection="shared"'),
    ({**SHARED, "kdim": 8}, 'kdim: projection="shared"'),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS, ids=lambda x: str(x)[:40])
def test_what_construction_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MultiHeadAttention(**{"dim": M, "num_heads": H, **options})


def x(*shape: int) -> Tensor:
    return torch.zeros(shape or (B, Q, M))


WRONG_CALLS: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((x().half(),), {}, DtypeError, "query: expected the dtype of the weights, torch.float32. .* query=torch.float16"),
    ((x(), masks.causal()), {}, DtypeError, r"key: expected a tensor .* Received: key=Band. Pass a mask by its name"),
    (([[1.0]],), {}, DtypeError, r"query: expected a tensor \[B, S, 16\]. Received: query=list"),
    ((x(Q, M),), {}, ShapeError, r"query: expected \[B, S, 16\]"),
    ((x(B, Q, 8),), {}, ShapeError, r"query: expected \[B, S, 16\]. Received: query=\[2, 5, 8\]"),
    ((x(), x(B, K, 8)), {}, ShapeError, r"key: expected \[B, S, 16\]. Received: key=\[2, 6, 8\]"),
    ((x(), x(3, K, M)), {}, ShapeError, r"key: expected the batch size of query, B=2. Received: key=\[3, 6, 16\]"),
    ((x(), x(B, K, M), x(B, 7, M)), {}, ShapeError, "value: expected the same number of positions as key"),
    ((x(), None, x()), {}, ArgumentError, "value: expected a key too"),
    ((x(),), {"real": torch.ones(B, Q)}, DtypeError, "real: expected bool or integers .* Received: real=torch.float32"),
    ((x(),), {"real": [True]}, DtypeError, "real: expected bool or integers .* Received: real=list"),
    ((x(),), {"real": torch.ones(B, K, dtype=torch.bool)}, ShapeError, r"real: expected \[2, 5\]"),
    ((x(),), {"mask": torch.zeros(Q, Q)}, (DtypeError, MaskError), "bool"),
    ((x(),), {"mask": torch.ones(Q, K, dtype=torch.bool)}, (ShapeError, MaskError), "5"),
    ((x(),), {"mask": torch.ones(B, Q, dtype=torch.bool)}, (ShapeError, MaskError), "5"),
    ((x(),), {"mask": "causal"}, DtypeError, "mask must be a headwise mask, a bool tensor or None. Received: str"),
    ((x(),), {"position_ids": torch.zeros(Q)}, DtypeError, "position_ids: expected an integer tensor"),
    ((x(),), {"position_ids": [0, 1]}, DtypeError, "position_ids: expected an integer tensor"),
    ((x(),), {"position_ids": torch.arange(K)}, ShapeError, r"position_ids: expected \[5\] or \[2, 5\]"),
]


@pytest.mark.parametrize(("args", "options", "error", "message"), WRONG_CALLS, ids=lambda x: str(x)[:30])
def test_what_a_call_refuses(args: tuple[Any, ...], options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        MultiHeadAttention(M, H, positions=Rope(4))(*args, **options)


def test_what_a_cache_refuses() -> None:
    layer, cache = MultiHeadAttention(M, H), Cache(capacity=Q)
    layer(x(), cache=cache)
    with pytest.raises(CacheError, match=r"this cache holds 5 of capacity=5. Received: 1 more"):
        layer(x(B, 1, M), cache=cache)
    with pytest.raises(CacheError, match="Received: a cache of another module, MultiHeadAttention"):
        MultiHeadAttention(M, H)(x(), cache=cache)
    cache = Cache()
    layer(x(), cache=cache)
    with pytest.raises(CacheError, match=r"3"):
        layer(x(3, 1, M), cache=cache)
    with pytest.raises(ArgumentError, match="position_ids: expected None, T5Buckets needs the positions"):
        MultiHeadAttention(M, H, positions=T5Buckets(H))(x(), cache=Cache(), position_ids=torch.arange(Q))


def test_positions_without_a_scheme_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"position_ids: expected a module with positions="):
        MultiHeadAttention(M, H)(x(), position_ids=torch.arange(Q))
