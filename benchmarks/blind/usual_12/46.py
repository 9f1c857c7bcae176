from typing import Optional

import torch
import torch.nn as nn


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    freqs = torch.outer(torch.arange(end).float(), freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis[None, :, None]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Grouped-query attention with a static cache.

    ``start_pos=None`` is the training path without cache. With ``start_pos`` the keys and values
    go to the buffers, whose stale rows beyond ``start_pos + seqlen`` are never read.
    """

    def __init__(self, dim=64, n_heads=8, n_kv_heads=2, max_batch_size=4, max_seq_len=64):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        cache_shape = (max_batch_size, max_seq_len, n_kv_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(cache_shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(cache_shape), persistent=False)
        self.register_buffer("freqs_cis", precompute_freqs_cis(self.head_dim, max_seq_len), persistent=False)

    def forward(self, x: torch.Tensor, start_pos: Optional[int] = None) -> torch.Tensor:
        b, n, _ = x.shape
        first = 0 if start_pos is None else start_pos
        xq = self.wq(x).view(b, n, self.n_heads, self.head_dim)
        xk = self.wk(x).view(b, n, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(b, n, self.n_kv_heads, self.head_dim)
        freqs_cis = self.freqs_cis[first : first + n]
        xq, xk = apply_rotary_emb(xq, freqs_cis), apply_rotary_emb(xk, freqs_cis)

        if start_pos is None:
            keys, values = xk, xv
        else:
            self.cache_k[:b, first : first + n] = xk.detach()
            self.cache_v[:b, first : first + n] = xv.detach()
            keys = self.cache_k[:b, : first + n]
            values = self.cache_v[:b, : first + n]

        xq = xq.view(b, n, self.n_kv_heads, self.n_rep, self.head_dim)
        scores = torch.einsum("bqgrd,bkgd->bgrqk", xq, keys) / self.head_dim**0.5
        if n > 1:
            mask = torch.full((n, first + n), float("-inf"), device=x.device)
            scores = scores + torch.triu(mask, diagonal=first + 1)
        scores = scores.float().softmax(dim=-1).type_as(xq)
        out = torch.einsum("bgrqk,bkgd->bqgrd", scores, values)
        return self.wo(out.reshape(b, n, -1))
