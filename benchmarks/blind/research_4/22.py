from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class AttnArgs:
    dim: int = 256
    n_heads: int = 8
    n_kv_heads: int = 2
    max_batch: int = 8
    max_seq_len: int = 128
    rope_theta: float = 10000.0


def precompute_rope(head_dim: int, length: int, theta: float):
    freqs = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(length).float(), freqs)
    return angles.cos(), angles.sin()


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class CachedGroupedAttention(nn.Module):
    """Grouped-query attention with a preallocated cache.

    Without ``start_pos`` the module is a plain causal layer and touches no state. With it, the call is part of a
    generation: the new keys and values are written at ``start_pos`` and the queries read everything before them;
    what later slots hold from earlier generations is never read, so the cache needs no clearing.
    """

    def __init__(self, args: Optional[AttnArgs] = None):
        super().__init__()
        args = args or AttnArgs()
        self.n_heads, self.n_kv = args.n_heads, args.n_kv_heads
        self.n_rep = args.n_heads // args.n_kv_heads
        self.hd = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.hd, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(args.n_heads * self.hd, args.dim, bias=False)
        cos, sin = precompute_rope(self.hd, args.max_seq_len, args.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        cache = torch.zeros(args.max_batch, args.max_seq_len, args.n_kv_heads, self.hd)
        self.register_buffer("cache_k", cache, persistent=False)
        self.register_buffer("cache_v", cache.clone(), persistent=False)

    def forward(self, x: torch.Tensor, start_pos: Optional[int] = None) -> torch.Tensor:
        b, t, _ = x.shape
        first = 0 if start_pos is None else start_pos
        q = self.wq(x).view(b, t, self.n_heads, self.hd)
        k = self.wk(x).view(b, t, self.n_kv, self.hd)
        v = self.wv(x).view(b, t, self.n_kv, self.hd)
        cos, sin = self.cos[first : first + t], self.sin[first : first + t]
        q, k = rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin)

        if start_pos is not None:
            end = start_pos + t
            self.cache_k[:b, start_pos:end] = k.detach()
            self.cache_v[:b, start_pos:end] = v.detach()
            k, v = self.cache_k[:b, :end].clone(), self.cache_v[:b, :end].clone()

        k = k.repeat_interleave(self.n_rep, dim=2)
        v = v.repeat_interleave(self.n_rep, dim=2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        s = k.size(2)
        visible = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(diagonal=s - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))
