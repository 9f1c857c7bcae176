import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


def rotary(x: torch.Tensor, pos: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """x: (B, S, ..., d) with pairs (2i, 2i+1), pos: (S,)"""
    d = x.size(-1)
    freq = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    ang = pos.float()[:, None] * freq
    ang = ang.view(1, pos.numel(), *([1] * (x.dim() - 3)), d // 2)
    cos, sin = ang.cos(), ang.sin()
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    out = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return out.type_as(x)


class AbsorbedMLA(nn.Module):
    """
    Multi-head latent attention in the absorbed form: W_uk is folded into the query and W_uv into the output, so
    that attention is multi-query attention on the cached latent and per-head keys are never formed. The scale
    stays that of the unabsorbed head, 1/sqrt(qk_nope + qk_rope), and not that of the latent.
    """

    def __init__(self, dim=64, n_heads=4, kv_rank=32, qk_nope=16, qk_rope=8, v_dim=16):
        super().__init__()
        self.n_heads, self.kv_rank = n_heads, kv_rank
        self.qk_nope, self.qk_rope, self.v_dim = qk_nope, qk_rope, v_dim
        self.wq = nn.Linear(dim, n_heads * (qk_nope + qk_rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_rank + qk_rope, bias=False)
        self.kv_norm = nn.LayerNorm(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, n_heads * (qk_nope + v_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)
        self.scale = 1.0 / math.sqrt(qk_nope + qk_rope)

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        B, S, _ = x.shape
        start = 0 if cache is None else cache[0].size(1)
        pos = torch.arange(start, start + S, device=x.device)

        q = self.wq(x).view(B, S, self.n_heads, self.qk_nope + self.qk_rope)
        q_nope, q_pe = q.split([self.qk_nope, self.qk_rope], dim=-1)
        q_pe = rotary(q_pe, pos)

        c, k_pe = self.wkv_a(x).split([self.kv_rank, self.qk_rope], dim=-1)
        c, k_pe = self.kv_norm(c), rotary(k_pe, pos)
        if cache is not None:
            c, k_pe = torch.cat([cache[0], c], dim=1), torch.cat([cache[1], k_pe], dim=1)

        w = self.wkv_b.weight.view(self.n_heads, self.qk_nope + self.v_dim, self.kv_rank)
        w_uk, w_uv = w[:, : self.qk_nope], w[:, self.qk_nope:]

        q_c = torch.einsum("bshd,hdc->bshc", q_nope, w_uk)
        logits = torch.einsum("bshc,btc->bhst", q_c, c) + torch.einsum("bshr,btr->bhst", q_pe, k_pe)
        logits = logits * self.scale
        hidden = torch.arange(c.size(1), device=x.device)[None, :] > pos[:, None]
        p = logits.masked_fill(hidden, float("-inf")).softmax(dim=-1, dtype=torch.float32).type_as(x)

        o = torch.einsum("bhst,btc->bshc", p, c)
        o = torch.einsum("bshc,hdc->bshd", o, w_uv)
        return self.wo(o.flatten(2)), (c, k_pe)
