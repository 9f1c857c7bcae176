from typing import NamedTuple, Optional, Tuple

import torch
from torch import nn


class LatentCache(NamedTuple):
    c_kv: torch.Tensor   # (B, S, rank), normalised
    k_pe: torch.Tensor   # (B, S, rope_dim), rotated


def _rms(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _rope(x, pos):
    half = x.shape[-1] // 2
    freq = 10000.0 ** (-torch.arange(half, device=x.device).float() / half)
    theta = pos.float()[:, None] * freq
    shape = (1, pos.numel()) + (1,) * (x.dim() - 3) + (half,)
    cos = theta.cos().view(shape).to(x.dtype)
    sin = theta.sin().view(shape).to(x.dtype)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)


class AbsorbedMLA(nn.Module):
    """MLA in its decoding form.

    The key up-projection is absorbed into the query and the value up-projection is
    applied after the weighted sum, so attention runs in the latent space and no
    per-head keys or values are ever built. The scale still belongs to the dimension
    of the keys that are not built (nope + rope), not to the rank of the latent.
    """

    def __init__(self, dim=256, num_heads=4, rank=64, nope_dim=32, rope_dim=16, v_dim=32):
        super().__init__()
        self.h, self.rank = num_heads, rank
        self.nope_dim, self.rope_dim, self.v_dim = nope_dim, rope_dim, v_dim
        self.q_proj = nn.Linear(dim, num_heads * (nope_dim + rope_dim), bias=False)
        self.kv_down = nn.Linear(dim, rank + rope_dim, bias=False)
        self.kv_gain = nn.Parameter(torch.ones(rank))
        self.k_up = nn.Parameter(torch.randn(num_heads, nope_dim, rank) * rank ** -0.5)
        self.v_up = nn.Parameter(torch.randn(num_heads, v_dim, rank) * rank ** -0.5)
        self.o_proj = nn.Linear(num_heads * v_dim, dim, bias=False)
        self.scale = (nope_dim + rope_dim) ** -0.5

    def forward(self, x, cache: Optional[LatentCache] = None) -> Tuple[torch.Tensor, LatentCache]:
        b, t, _ = x.shape
        past = 0 if cache is None else cache.c_kv.shape[1]
        pos = torch.arange(past, past + t, device=x.device)

        q = self.q_proj(x).view(b, t, self.h, self.nope_dim + self.rope_dim)
        q_nope, q_pe = q.split([self.nope_dim, self.rope_dim], dim=-1)
        q_pe = _rope(q_pe, pos)
        q_lat = torch.einsum("bthd,hdr->bthr", q_nope, self.k_up)

        c_kv, k_pe = self.kv_down(x).split([self.rank, self.rope_dim], dim=-1)
        c_kv = _rms(c_kv, self.kv_gain)
        k_pe = _rope(k_pe, pos)
        if cache is not None:
            c_kv = torch.cat([cache.c_kv, c_kv], dim=1)
            k_pe = torch.cat([cache.k_pe, k_pe], dim=1)

        logits = torch.einsum("bthr,bsr->bhts", q_lat, c_kv)
        logits = logits + torch.einsum("bthp,bsp->bhts", q_pe, k_pe)
        logits = logits * self.scale
        key_pos = torch.arange(past + t, device=x.device)
        logits = logits.masked_fill(key_pos[None, :] > pos[:, None], float("-inf"))

        ctx = torch.einsum("bhts,bsr->bthr", logits.softmax(-1), c_kv)
        out = torch.einsum("bthr,hvr->bthv", ctx, self.v_up)
        return self.o_proj(out.reshape(b, t, -1)), LatentCache(c_kv, k_pe)
