from typing import NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


class LatentCache(NamedTuple):
    c_kv: torch.Tensor  # (batch, past, kv_lora_rank), already normalised
    k_pe: torch.Tensor  # (batch, past, qk_rope_head_dim), already rotated


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)


def apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: (batch, seq, heads, dim), channels paired (0, 1), (2, 3), ...; cos, sin: (seq, dim // 2)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[None, :, None].to(x.dtype), sin[None, :, None].to(x.dtype)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class MLA(nn.Module):
    """Multi-head latent attention (DeepSeek-V2), causal.

    Keys and values are rebuilt from a low-rank latent; only the latent and one shared rotary key
    are cached. The rotary key is the same for all heads.
    """

    def __init__(
        self,
        dim: int = 512,
        n_heads: int = 8,
        q_lora_rank: int = 192,
        kv_lora_rank: int = 128,
        qk_nope_head_dim: int = 64,
        qk_rope_head_dim: int = 32,
        v_head_dim: int = 64,
        rope_theta: float = 10000.0,
    ):
        super().__init__()
        self.n_heads = n_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.softmax_scale = self.qk_head_dim**-0.5

        self.wq_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = RMSNorm(q_lora_rank)
        self.wq_b = nn.Linear(q_lora_rank, n_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (qk_nope_head_dim + v_head_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)

        inv_freq = rope_theta ** (-torch.arange(0, qk_rope_head_dim, 2).float() / qk_rope_head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x: torch.Tensor, cache: Optional[LatentCache] = None) -> Tuple[torch.Tensor, LatentCache]:
        bsz, seqlen, _ = x.shape
        start_pos = 0 if cache is None else cache.c_kv.shape[1]
        end_pos = start_pos + seqlen

        t = torch.arange(start_pos, end_pos, device=x.device, dtype=torch.float32)
        angles = torch.outer(t, self.inv_freq)
        cos, sin = angles.cos(), angles.sin()

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(bsz, seqlen, self.n_heads, self.qk_head_dim)
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q_pe = apply_rotary_emb(q_pe, cos, sin)

        c_kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        c_kv = self.kv_norm(c_kv)
        k_pe = apply_rotary_emb(k_pe.unsqueeze(2), cos, sin).squeeze(2)
        if cache is not None:
            c_kv = torch.cat([cache.c_kv, c_kv], dim=1)
            k_pe = torch.cat([cache.k_pe, k_pe], dim=1)
        new_cache = LatentCache(c_kv, k_pe)

        # absorbed form: fold W_uk into the query and W_uv into the output, attend in latent space
        wkv_b = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank)
        w_uk, w_uv = wkv_b.split([self.qk_nope_head_dim, self.v_head_dim], dim=1)
        q_latent = torch.einsum("bshd,hdc->bshc", q_nope, w_uk)
        scores = torch.einsum("bshc,btc->bsht", q_latent, c_kv) + torch.einsum("bshr,btr->bsht", q_pe, k_pe)
        scores = scores * self.softmax_scale

        future = torch.ones(seqlen, end_pos, dtype=torch.bool, device=x.device).triu(start_pos + 1)
        scores = scores.masked_fill(future[None, :, None, :], float("-inf"))
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(x)

        out = torch.einsum("bsht,btc->bshc", probs, c_kv)
        out = torch.einsum("bshc,hdc->bshd", out, w_uv)
        return self.wo(out.flatten(2)), new_cache
