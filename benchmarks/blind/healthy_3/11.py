from typing import NamedTuple, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowCache(NamedTuple):
    k: torch.Tensor  # (batch, kv heads, n, head_dim), already rotated
    v: torch.Tensor
    seen: int        # number of tokens processed so far


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class SlidingWindowAttention(nn.Module):
    """Mistral-style local attention: a token sees itself and the ``window - 1`` tokens before it.

    Call it with the whole sequence, or chunk by chunk with the cache of the previous call::

        y, cache = attn(x[:, :n])
        z, cache = attn(x[:, n:], cache)
    """

    def __init__(self, dim=256, num_heads=8, num_kv_heads=4, window=32, rope_base=10000.0):
        super().__init__()
        assert dim % num_heads == 0 and num_heads % num_kv_heads == 0 and window >= 1
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        inv_freq = rope_base ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, x, positions):
        angles = positions[:, None].float() * self.inv_freq.float()
        angles = torch.cat((angles, angles), dim=-1)
        return (x * angles.cos() + rotate_half(x) * angles.sin()).to(x.dtype)

    def forward(
        self, x: torch.Tensor, cache: Optional[WindowCache] = None
    ) -> Tuple[torch.Tensor, WindowCache]:
        B, T, _ = x.shape
        past = 0 if cache is None else cache.seen
        q = self.q_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)

        q_pos = torch.arange(past, past + T, device=x.device)
        q, k = self._rope(q, q_pos), self._rope(k, q_pos)
        if cache is not None:
            k = torch.cat((cache.k, k), dim=2)
            v = torch.cat((cache.v, v), dim=2)
        S = k.size(2)
        k_pos = torch.arange(past + T - S, past + T, device=x.device)

        # older tokens can never be seen again: the next query is at past + T
        keep = min(self.window - 1, S)
        new_cache = WindowCache(k[:, :, S - keep:], v[:, :, S - keep:], past + T)

        offset = q_pos[:, None] - k_pos[None, :]
        visible = (offset >= 0) & (offset < self.window)
        group = self.num_heads // self.num_kv_heads
        out = F.scaled_dot_product_attention(
            q,
            k.repeat_interleave(group, dim=1),
            v.repeat_interleave(group, dim=1),
            attn_mask=visible,
        )
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1)), new_cache
