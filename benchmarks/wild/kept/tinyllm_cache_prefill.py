"""The causal mask is skipped whenever a cache is passed, so a multi-token prefill sees the future.

Mikyx-1/TinyLLM #18 (2026)
https://github.com/Mikyx-1/TinyLLM/pull/18
"""
import math

import torch
import torch.nn as nn


def update_cache(cache, k, v):
    """Append keys and values, (B, n_heads, T, head_dim), to a copy of the cache; an empty dict starts a new one."""
    if cache:
        k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
    return {"k": k, "v": v}


class _MultiHeadAttentionBase(nn.Module):
    """Causal multi-head self-attention.

    Args:
        d_model: model width
        n_heads: number of heads
        max_seq_len: longest sequence, prompt and generated tokens together
    """

    def __init__(self, d_model: int, n_heads: int, max_seq_len: int):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.register_buffer("causal_mask", torch.triu(torch.ones(max_seq_len, max_seq_len, dtype=torch.bool), 1))

    def split(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return (t.view(B, T, self.n_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))

    def merge(self, scores, v):
        out = torch.softmax(scores, dim=-1) @ v
        B, H, T, D = out.shape
        return self.out_proj(out.transpose(1, 2).reshape(B, T, H * D))


def broken() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        def forward(self, x, cache=None):
            """
            x: (B, T, C), the new tokens; cache: None, or the dict of the previous tokens ({} for the prompt).
            Returns the output for the new tokens and the cache including them.
            """
            T_new = x.shape[1]
            q, k, v = self.split(x)
            if cache is not None:
                cache = update_cache(cache, k, v)
                k, v = cache["k"], cache["v"]
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(self.head_dim)
            if cache is None:
                scores = scores.masked_fill(self.causal_mask[:T_new, :T_new], float("-inf"))
            return self.merge(scores, v), cache

    torch.manual_seed(0)
    return MultiHeadAttention(32, 4, 32)


def fixed() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        def forward(self, x, cache=None):
            """
            x: (B, T, C), the new tokens; cache: None, or the dict of the previous tokens ({} for the prompt).
            Returns the output for the new tokens and the cache including them.
            """
            T_new = x.shape[1]
            q, k, v = self.split(x)
            if cache is not None:
                cache = update_cache(cache, k, v)
                k, v = cache["k"], cache["v"]
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(self.head_dim)
            T_total = k.shape[2]
            mask = self.causal_mask[T_total - T_new:T_total, :T_total]
            scores = scores.masked_fill(mask, float("-inf"))
            return self.merge(scores, v), cache

    torch.manual_seed(0)
    return MultiHeadAttention(32, 4, 32)


def example():
    g = torch.Generator().manual_seed(10)
    x = torch.randn(2, 5, 32, generator=g)
    past = {"k": torch.randn(2, 4, 3, 8, generator=g), "v": torch.randn(2, 4, 3, 8, generator=g)}
    return (x,), {"cache": past}
