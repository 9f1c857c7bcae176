"""The cache raises its offset in place during the update, so queries are rotated at positions one chunk too late.

ml-explore/mlx-lm #1699 (2026)
https://github.com/ml-explore/mlx-lm/issues/1699
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class BatchKVCache:
    def __init__(self, batch):
        self.keys = self.values = None
        self.offset = torch.zeros(batch, dtype=torch.long)

    def update_and_fetch(self, keys, values):
        self.offset += keys.shape[2]
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 2)
        self.values = values if self.values is None else torch.cat([self.values, values], 2)
        return self.keys, self.values


def _build(rev):
    class Gemma3nAttention(nn.Module):
        """Causal attention with rotary positions, decoded through a cache made afresh in every forward: the prompt (all
        but the last `steps` tokens) first, then token by token. forward(x), x (B, T, dim) -> (B, T, dim)."""

        def __init__(self, dim=64, n_heads=4, n_kv_heads=2, steps=3):
            super().__init__()
            self.n_heads, self.n_kv_heads, self.head_dim, self.steps = n_heads, n_kv_heads, dim // n_heads, steps
            self.q_proj = nn.Linear(dim, dim, bias=False)
            self.k_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
            self.v_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
            self.o_proj = nn.Linear(dim, dim, bias=False)
            self.q_norm = nn.RMSNorm(self.head_dim)
            self.k_norm = nn.RMSNorm(self.head_dim)

        def rope(self, x, offset):
            D = self.head_dim
            inv = 1.0 / (10000 ** (torch.arange(0, D, 2, device=x.device).float() / D))
            t = offset[:, None, None] + torch.arange(x.shape[2], device=x.device)
            f = t[..., None].float() * inv
            cos, sin = torch.cat((f, f), -1).cos(), torch.cat((f, f), -1).sin()
            x1, x2 = x.chunk(2, -1)
            return x * cos + torch.cat((-x2, x1), -1) * sin

        def call(self, x, cache):
            B, L, _ = x.shape
            queries = self.q_norm(self.q_proj(x).view(B, L, -1, self.head_dim)).transpose(1, 2)
            keys = self.k_norm(self.k_proj(x).view(B, L, -1, self.head_dim)).transpose(1, 2)
            values = self.v_proj(x).view(B, L, -1, self.head_dim).transpose(1, 2)
            offset = cache.offset if rev == 1 else cache.offset.clone()
            keys = self.rope(keys, offset)
            keys, values = cache.update_and_fetch(keys, values)
            queries = self.rope(queries, offset)
            S, n = keys.shape[2], self.n_heads // self.n_kv_heads
            mask = torch.ones(L, S, dtype=torch.bool, device=x.device).tril(S - L)
            y = F.scaled_dot_product_attention(queries, keys.repeat_interleave(n, 1), values.repeat_interleave(n, 1),
                                               attn_mask=mask)
            return self.o_proj(y.transpose(1, 2).reshape(B, L, -1))

        def forward(self, x):
            cache = BatchKVCache(x.shape[0])
            cut = max(1, x.shape[1] - self.steps)
            out = [self.call(x[:, :cut], cache)]
            for t in range(cut, x.shape[1]):
                out.append(self.call(x[:, t:t + 1], cache))
            return torch.cat(out, dim=1)

    torch.manual_seed(0)
    return Gemma3nAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
