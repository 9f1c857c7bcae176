"""The causal mask is used only when there are as many keys as queries, so a chunk decoded on top of a cache sees its own future.

mlx-node/mlx-node #24 (2026)
https://github.com/mlx-node/mlx-node/pull/24
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class Attention(nn.Module):
        """Causal self-attention with a cache.

        forward(x, cache=None): x (B, T, dims), the new tokens; cache = (keys, values) of the tokens before them, each
        (B, kv_heads, T_past, head_dim). Returns (output, new cache).
        """

        def __init__(self, dims=64, num_heads=4, num_kv_heads=2):
            super().__init__()
            self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, dims // num_heads
            self.q_proj = nn.Linear(dims, dims)
            self.k_proj = nn.Linear(dims, num_kv_heads * self.head_dim)
            self.v_proj = nn.Linear(dims, num_kv_heads * self.head_dim)
            self.o_proj = nn.Linear(dims, dims, bias=False)

        def forward(self, x, cache=None):
            B, seq_len, _ = x.shape
            queries = self.q_proj(x).view(B, seq_len, -1, self.head_dim).transpose(1, 2)
            keys = self.k_proj(x).view(B, seq_len, -1, self.head_dim).transpose(1, 2)
            values = self.v_proj(x).view(B, seq_len, -1, self.head_dim).transpose(1, 2)
            if cache is not None:
                keys = torch.cat([cache[0], keys], dim=2)
                values = torch.cat([cache[1], values], dim=2)
            kv_len = keys.shape[2]
            mask = None
            if seq_len > 1 and (rev == 2 or seq_len == kv_len):
                mask = torch.ones(seq_len, kv_len, dtype=torch.bool, device=x.device).tril(kv_len - seq_len)
            n = self.num_heads // self.num_kv_heads
            y = F.scaled_dot_product_attention(queries, keys.repeat_interleave(n, 1), values.repeat_interleave(n, 1),
                                               attn_mask=mask)
            return self.o_proj(y.transpose(1, 2).reshape(B, seq_len, -1)), (keys, values)

    torch.manual_seed(0)
    return Attention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 4, 64),), {"cache": (torch.randn(2, 2, 6, 16), torch.randn(2, 2, 6, 16))}
