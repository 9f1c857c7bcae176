from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


class GroupedQueryAttention(nn.Module):
    """Causal grouped-query attention with rotary positions and a key/value cache.

    Returns the output and ``(keys, values)``, to be passed as ``past`` in the next call.
    """

    def __init__(self, dim: int = 64, num_heads: int = 8, num_kv_heads: int = 2, rope_theta: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = dim // num_heads
        self.wq = nn.Linear(dim, num_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(num_heads * self.head_dim, dim, bias=False)
        inv_freq = rope_theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, x: torch.Tensor, start: int) -> torch.Tensor:
        pos = torch.arange(start, start + x.size(2), device=x.device, dtype=torch.float32)
        angles = torch.outer(pos, self.inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        return x * angles.cos().to(x.dtype) + rotate_half(x) * angles.sin().to(x.dtype)

    def forward(self, x: torch.Tensor, past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)

        past_len = 0
        if past is not None:
            past_len = past[0].size(2)
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)

        q = self.rope(q, past_len)
        k = self.rope(k, 0)
        present = (k, v)

        groups = self.num_heads // self.num_kv_heads
        mask = torch.ones(t, past_len + t, dtype=torch.bool, device=x.device).tril(past_len)
        out = F.scaled_dot_product_attention(
            q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1), attn_mask=mask
        )
        return self.wo(out.transpose(1, 2).reshape(b, t, -1)), present
