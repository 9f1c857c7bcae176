from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class MLAConfig:
    dim: int = 128
    n_heads: int = 4
    q_lora_rank: int = 48
    kv_lora_rank: int = 32
    qk_nope_head_dim: int = 24
    qk_rope_head_dim: int = 8
    v_head_dim: int = 20
    rope_theta: float = 10000.0


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def apply_rotary(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """Rotates neighbouring pairs of features. x: (b, s, h, d), freqs_cis: (s, d / 2) complex."""
    dtype = x.dtype
    x = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, x.size(1), 1, x.size(-1))
    return torch.view_as_real(x * freqs_cis).flatten(3).to(dtype)


class MultiHeadLatentAttention(nn.Module):
    """Multi-head latent attention: keys and values come from one small shared latent,
    positions go through a separate rotary key that all heads share."""

    def __init__(self, cfg: Optional[MLAConfig] = None):
        super().__init__()
        cfg = cfg or MLAConfig()
        self.cfg = cfg
        self.qk_head_dim = cfg.qk_nope_head_dim + cfg.qk_rope_head_dim
        self.softmax_scale = self.qk_head_dim ** -0.5

        self.wq_a = nn.Linear(cfg.dim, cfg.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(cfg.q_lora_rank)
        self.wq_b = nn.Linear(cfg.q_lora_rank, cfg.n_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(cfg.dim, cfg.kv_lora_rank + cfg.qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(cfg.kv_lora_rank)
        self.wkv_b = nn.Linear(
            cfg.kv_lora_rank, cfg.n_heads * (cfg.qk_nope_head_dim + cfg.v_head_dim), bias=False
        )
        self.wo = nn.Linear(cfg.n_heads * cfg.v_head_dim, cfg.dim, bias=False)

    def _freqs_cis(self, seqlen: int, device) -> torch.Tensor:
        d = self.cfg.qk_rope_head_dim
        inv = 1.0 / (self.cfg.rope_theta ** (torch.arange(0, d, 2, device=device).float() / d))
        angles = torch.outer(torch.arange(seqlen, device=device).float(), inv)
        return torch.polar(torch.ones_like(angles), angles)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = self.cfg
        b, s, _ = x.shape
        freqs_cis = self._freqs_cis(s, x.device)

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(b, s, c.n_heads, self.qk_head_dim)
        q_nope, q_pe = q.split([c.qk_nope_head_dim, c.qk_rope_head_dim], dim=-1)
        q_pe = apply_rotary(q_pe, freqs_cis)

        kv, k_pe = self.wkv_a(x).split([c.kv_lora_rank, c.qk_rope_head_dim], dim=-1)
        k_pe = apply_rotary(k_pe.unsqueeze(2), freqs_cis)

        # score through the latent: the key up-projection is absorbed into the query
        latent = self.kv_norm(kv)
        wkv_b = self.wkv_b.weight.view(c.n_heads, -1, c.kv_lora_rank)
        w_k, w_v = wkv_b[:, : c.qk_nope_head_dim], wkv_b[:, c.qk_nope_head_dim:]
        q_latent = torch.einsum("bshd,hdc->bshc", q_nope, w_k)

        scores = torch.einsum("bshc,btc->bsht", q_latent, latent)
        scores = scores + torch.einsum("bshr,btr->bsht", q_pe, k_pe.squeeze(2))
        scores = scores * self.softmax_scale

        mask = torch.full((s, s), float("-inf"), device=x.device, dtype=scores.dtype).triu_(1)
        scores = scores + mask.unsqueeze(1)
        attn = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(x)

        out = torch.einsum("bsht,btc->bshc", attn, latent)
        out = torch.einsum("bshc,hdc->bshd", out, w_v)
        return self.wo(out.flatten(2))
