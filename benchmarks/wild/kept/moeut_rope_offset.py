"""The query offset of RoPE is taken from the new keys before the cache is prepended, so decoded queries sit at 0.

RobertCsordas/moeut #6 (2026)
https://github.com/RobertCsordas/moeut/pull/6
"""
from typing import Any, Dict, Optional, Tuple

import torch
import torch.nn.functional as F

KVCache = Optional[Dict[str, Any]]


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class RotaryPosEncoding(torch.nn.Module):
    def __init__(self, d_model: int, base=10000):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, d_model, 2).float() / d_model))

    def rotate(self, x: torch.Tensor, offset: int) -> torch.Tensor:
        t = torch.arange(offset, offset + x.shape[-2], device=x.device).float()
        freqs = torch.outer(t, self.inv_freq).repeat(1, 2)
        return x * freqs.cos() + rotate_half(x) * freqs.sin()

    def forward(self, q: torch.Tensor, k: torch.Tensor, pos_offset: int):
        return self.rotate(q, pos_offset), self.rotate(k, 0)


class _SelfAttentionBase(torch.nn.Module):
    """Causal self attention with RoPE and an optional cache of unrotated keys.

    With kv_cache, the positions of x continue after the cached ones.
    """

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads, self.projection_size = n_heads, d_model // n_heads
        self.q = torch.nn.Linear(d_model, d_model, bias=False)
        self.k = torch.nn.Linear(d_model, d_model, bias=False)
        self.v = torch.nn.Linear(d_model, d_model, bias=False)
        self.o = torch.nn.Linear(d_model, d_model, bias=False)
        self.pe = RotaryPosEncoding(self.projection_size)

    def project_to_torch_order(self, x):
        return x.view(*x.shape[:-1], self.n_heads, -1).permute(0, 2, 1, 3)

    def project(self, x):
        return (self.project_to_torch_order(f(x)) for f in (self.q, self.k, self.v))

    def extend(self, kv_cache, k, v):
        if kv_cache:
            k, v = torch.cat([kv_cache["k"], k], dim=-2), torch.cat([kv_cache["v"], v], dim=-2)
        return {"k": k, "v": v}

    def attend(self, pos_offset: int, q, k, v):
        q, k = self.pe(q, k, pos_offset)
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(k.shape[-2] - q.shape[-2])
        res = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(res.transpose(-2, -3).flatten(-2))


def broken() -> torch.nn.Module:
    class SelfAttention(_SelfAttentionBase):
        def forward(self, x: torch.Tensor, kv_cache: KVCache = None) -> Tuple[torch.Tensor, KVCache]:
            q, k, v = self.project(x)
            pos_offset = k.shape[-2] - q.shape[-2]
            kv_cache = self.extend(kv_cache, k, v)
            return self.attend(pos_offset, q, kv_cache["k"], kv_cache["v"]), kv_cache

    torch.manual_seed(0)
    return SelfAttention(32, 4)


def fixed() -> torch.nn.Module:
    class SelfAttention(_SelfAttentionBase):
        def forward(self, x: torch.Tensor, kv_cache: KVCache = None) -> Tuple[torch.Tensor, KVCache]:
            q, k, v = self.project(x)
            kv_cache = self.extend(kv_cache, k, v)
            pos_offset = kv_cache["k"].shape[-2] - q.shape[-2]
            return self.attend(pos_offset, q, kv_cache["k"], kv_cache["v"]), kv_cache

    torch.manual_seed(0)
    return SelfAttention(32, 4)


def example():
    g = torch.Generator().manual_seed(21)
    x = torch.randn(2, 1, 32, generator=g)
    cache = {"k": torch.randn(2, 4, 9, 8, generator=g), "v": torch.randn(2, 4, 9, 8, generator=g)}
    return (x,), {"kv_cache": cache}
