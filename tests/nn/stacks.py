"""The small stacks that the tests of encoders and decoders share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.masks import Mask
from headwise.nn import Cache, MultiHeadAttention, positions
from headwise.nn.transformer import Decoder, Encoder

M, H, F64 = 12, 3, torch.float64
CAUSAL = masks.causal()


def rope_attention() -> MultiHeadAttention:
    return MultiHeadAttention(M, H, num_kv_heads=1, head_dim=6, qk_norm="rms", positions=positions.Rope(6), dtype=F64)


def gpt(**options: Any) -> Encoder:
    """Two layers as in Llama, with grouped queries and RoPE."""
    given: dict[str, Any] = {"norm": "rms", "activation": "swiglu", "bias": False, "ffn_dim": 16, "dtype": F64}
    return Encoder(M, num_layers=2, attention=rope_attention, **{**given, **options})


def decoder(**options: Any) -> Decoder:
    """Two layers with RoPE in the self-attention, and a memory of another width."""
    given: dict[str, Any] = {"num_heads": H, "memory_dim": 5, "ffn_dim": 16, "dtype": F64}
    return Decoder(M, num_layers=2, self_attention=rope_attention, **{**given, **options})


def in_chunks(model: nn.Module, x: Tensor, sizes: list[int], cache: Cache, mask: Mask = CAUSAL, **given: Any) -> Tensor:
    """What the model says to x, given so many tokens at a time."""
    real = given.pop("real", None)
    outs, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        padding = None if real is None else real[:, part]
        outs.append(model(x[:, part], mask=mask, cache=cache, real=padding, **given))
        start += size
    assert start == x.shape[1]
    return torch.cat(outs, 1)
