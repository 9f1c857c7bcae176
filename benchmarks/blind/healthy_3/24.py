from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight


class MultiHeadLatentAttention(nn.Module):
    """DeepSeek-V2 multi-head latent attention, causal.

    Keys and values are expanded from one low-rank latent per token. The position lives in a separate
    part of the key of ``rope_dim`` channels, shared by all heads. The cache holds only the latent
    and this rotated part::

        y, cache = mla(prompt)
        y, cache = mla(next_token, cache)

    Args:
        q_rank: rank of the query compression, ``None`` for a full projection.
        nope_dim, rope_dim: channels per head without and with position.
        v_dim: channels per head of the values.
    """

    def __init__(
        self,
        dim: int = 256,
        num_heads: int = 8,
        q_rank: Optional[int] = 96,
        kv_rank: int = 64,
        nope_dim: int = 32,
        rope_dim: int = 16,
        v_dim: int = 32,
        rope_base: float = 10000.0,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.kv_rank = kv_rank
        self.nope_dim, self.rope_dim, self.v_dim = nope_dim, rope_dim, v_dim
        self.scale = (nope_dim + rope_dim) ** -0.5

        q_out = num_heads * (nope_dim + rope_dim)
        if q_rank is None:
            self.q_proj = nn.Linear(dim, q_out, bias=False)
        else:
            self.q_proj = nn.Sequential(
                nn.Linear(dim, q_rank, bias=False), RMSNorm(q_rank), nn.Linear(q_rank, q_out, bias=False)
            )
        self.kv_down = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_rank)
        self.kv_up = nn.Linear(kv_rank, num_heads * (nope_dim + v_dim), bias=False)
        self.o_proj = nn.Linear(num_heads * v_dim, dim, bias=False)
        inv_freq = rope_base ** (-torch.arange(0, rope_dim, 2).float() / rope_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        """x: (B, heads, T, rope_dim), neighbouring channels form the pairs."""
        angle = pos[:, None].float() * self.inv_freq.float()
        cos, sin = angle.cos(), angle.sin()
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return rotated.flatten(-2).to(x.dtype)

    def forward(
        self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        B, T, _ = x.shape
        past = 0 if cache is None else cache[0].size(1)
        pos = torch.arange(past, past + T, device=x.device)

        q = self.q_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split([self.nope_dim, self.rope_dim], dim=-1)
        q = torch.cat([q_nope, self._rope(q_rope, pos)], dim=-1)

        latent, k_rope = self.kv_down(x).split([self.kv_rank, self.rope_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_rope = self._rope(k_rope.unsqueeze(1), pos)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_rope = torch.cat([cache[1], k_rope], dim=2)
        S = latent.size(1)

        kv = self.kv_up(latent).view(B, S, self.num_heads, -1).transpose(1, 2)
        k_nope, v = kv.split([self.nope_dim, self.v_dim], dim=-1)
        k = torch.cat([k_nope, k_rope.expand(-1, self.num_heads, -1, -1)], dim=-1)

        visible = torch.arange(S, device=x.device)[None, :] <= pos[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=self.scale)
        out = out.transpose(1, 2).reshape(B, T, self.num_heads * self.v_dim)
        return self.o_proj(out), (latent, k_rope)
