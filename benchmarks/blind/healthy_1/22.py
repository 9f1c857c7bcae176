from typing import Optional, Tuple

import torch
from torch import nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        var = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x.float() * torch.rsqrt(var + self.eps)).to(x.dtype)


def apply_rotary(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """Rotates adjacent pairs; x is (b, t, h, d), freqs_cis is (t, d / 2) complex."""
    pairs = torch.view_as_complex(x.float().contiguous().view(*x.shape[:-1], -1, 2))
    out = torch.view_as_real(pairs * freqs_cis[None, :, None, :]).flatten(-2)
    return out.to(x.dtype)


class MLA(nn.Module):
    """Multi-head latent attention, "absorbed" formulation.

    The cache holds the normalised latent ``(b, t, kv_lora_rank)`` and the shared rotary key
    ``(b, t, qk_rope_head_dim)`` only. ``W_uk`` is multiplied into the query and ``W_uv`` is applied after
    the weighted sum of latents, per-head keys and values are never formed.
    """

    def __init__(
        self,
        dim: int = 128,
        n_heads: int = 4,
        q_lora_rank: int = 48,
        kv_lora_rank: int = 32,
        qk_nope_head_dim: int = 32,
        qk_rope_head_dim: int = 16,
        v_head_dim: int = 24,
        rope_theta: float = 10000.0,
    ):
        super().__init__()
        self.n_heads = n_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.rope_theta = rope_theta

        qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.wq_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = RMSNorm(q_lora_rank)
        self.wq_b = nn.Linear(q_lora_rank, n_heads * qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (qk_nope_head_dim + v_head_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)
        # the latent detour does not change the logits: they are those of keys of size nope + rope
        self.softmax_scale = qk_head_dim ** -0.5

    def freqs(self, start: int, length: int, device) -> torch.Tensor:
        exponent = torch.arange(0, self.qk_rope_head_dim, 2, device=device, dtype=torch.float32)
        inv = 1.0 / (self.rope_theta ** (exponent / self.qk_rope_head_dim))
        angle = torch.outer(torch.arange(start, start + length, device=device).float(), inv)
        return torch.polar(torch.ones_like(angle), angle)

    def forward(
        self,
        x: torch.Tensor,
        cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        """x: (b, t, dim), causal. Returns the output and the extended cache."""
        b, t, _ = x.shape
        start = 0 if cache is None else cache[0].shape[1]
        freqs_cis = self.freqs(start, t, x.device)

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(b, t, self.n_heads, -1)
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q_pe = apply_rotary(q_pe, freqs_cis)

        latent, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = apply_rotary(k_pe.unsqueeze(2), freqs_cis).squeeze(2)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)

        wkv_b = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank)
        w_uk, w_uv = wkv_b.split([self.qk_nope_head_dim, self.v_head_dim], dim=1)

        q_latent = torch.einsum("bshd,hdc->bshc", q_nope, w_uk)
        scores = torch.einsum("bshc,btc->bsht", q_latent, latent) + torch.einsum("bshr,btr->bsht", q_pe, k_pe)
        scores = scores * self.softmax_scale
        if t > 1:
            total = start + t
            future = torch.ones(t, total, dtype=torch.bool, device=x.device).triu(start + 1)
            scores = scores.masked_fill(future[None, :, None, :], float("-inf"))
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)

        ctx = torch.einsum("bsht,btc->bshc", probs, latent)
        out = torch.einsum("bshc,hdc->bshd", ctx, w_uv)
        return self.wo(out.flatten(2)), (latent, k_pe)
