import math
from typing import Optional, Tuple

import torch
from torch import nn


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end, dtype=torch.float32)
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """x: (B, T, heads..., D); consecutive channels form the complex pairs."""
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    shape = [1, x.shape[1]] + [1] * (x.dim() - 3) + [x.shape[-1] // 2]
    return torch.view_as_real(x_ * freqs_cis.view(shape)).flatten(-2).type_as(x)


class GroupedQueryAttention(nn.Module):
    """Grouped query attention that never materialises the repeated keys and values.

    Query head ``kv * group + g`` belongs to key/value head ``kv``.
    """

    def __init__(self, dim: int = 64, n_heads: int = 8, n_kv_heads: int = 2, max_seq_len: int = 512,
                 rope_theta: float = 10000.0):
        super().__init__()
        assert n_heads % n_kv_heads == 0
        self.n_kv_heads = n_kv_heads
        self.group = n_heads // n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        self.register_buffer(
            "freqs_cis", precompute_freqs_cis(self.head_dim, max_seq_len, rope_theta), persistent=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.n_kv_heads, self.group, self.head_dim)
        k = self.wk(x).view(B, T, self.n_kv_heads, self.head_dim)
        v = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim)

        freqs = self.freqs_cis[:T]
        # the scale goes into q once, before the product, to keep the logits small in half precision
        q = apply_rotary(q, freqs) / math.sqrt(self.head_dim)
        k = apply_rotary(k, freqs)

        logits = torch.einsum("bqngd,bknd->bngqk", q, k)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        logits = logits.masked_fill(future, float("-inf"))
        probs = logits.float().softmax(dim=-1).type_as(v)
        out = torch.einsum("bngqk,bknd->bqngd", probs, v)
        return self.wo(out.reshape(B, T, -1))
