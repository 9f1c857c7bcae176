from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def repeat_kv(hidden: torch.Tensor, n_rep: int) -> torch.Tensor:
    if n_rep == 1:
        return hidden
    b, h, t, d = hidden.shape
    return hidden[:, :, None].expand(b, h, n_rep, t, d).reshape(b, h * n_rep, t, d)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class GroupedQueryAttention(nn.Module):
    """Causal GQA with rotary embedding and a key/value cache.

    ``past`` is the pair returned by the previous call; the tokens of ``x`` follow the
    cached ones.
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
        inv_freq = 1.0 / rope_theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, t, start):
        pos = torch.arange(start, start + t.size(2), device=t.device).float()
        ang = torch.outer(pos, self.inv_freq)
        ang = torch.cat((ang, ang), dim=-1)
        return t * ang.cos().to(t.dtype) + rotate_half(t) * ang.sin().to(t.dtype)

    def forward(
        self, x: torch.Tensor, past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None, use_cache: bool = False
    ):
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)

        start = 0 if past is None else past[0].size(2)
        q, k = self.rope(q, start), self.rope(k, start)
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        present = (k, v) if use_cache else None

        n_rep = self.num_heads // self.num_kv_heads
        y = F.scaled_dot_product_attention(q, repeat_kv(k, n_rep), repeat_kv(v, n_rep), is_causal=True)
        y = y.transpose(1, 2).reshape(B, T, -1)
        return self.wo(y), present
