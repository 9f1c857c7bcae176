from typing import Optional, Tuple

import torch
from torch import nn


def rope(x: torch.Tensor, pos: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """Rotates interleaved pairs of the last dimension. x: (B, T, ..., d), pos: (T,)"""
    d = x.shape[-1]
    freq = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = pos.float()[:, None] * freq
    angle = angle.view(pos.shape[0], *([1] * (x.dim() - 3)), d // 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2) in its absorbed form.

    Only the normalised latent and one rotary key, shared by all heads, are cached. The up-projections of
    keys and values are never applied to the cache: ``w_uk`` is moved to the query side, ``w_uv`` behind
    the weighted sum. The dot product of a head has ``nope_dim + rope_dim`` terms, which sets the scale.
    """

    def __init__(
        self,
        dim: int = 64,
        n_heads: int = 4,
        kv_rank: int = 24,
        nope_dim: int = 16,
        rope_dim: int = 8,
        v_dim: int = 16,
    ):
        super().__init__()
        self.n_heads, self.nope_dim, self.rope_dim = n_heads, nope_dim, rope_dim
        self.wq = nn.Linear(dim, n_heads * (nope_dim + rope_dim), bias=False)
        self.wkv_down = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_rank = kv_rank
        self.gain = nn.Parameter(torch.ones(kv_rank))
        self.w_uk = nn.Parameter(torch.randn(n_heads, nope_dim, kv_rank) * kv_rank ** -0.5)
        self.w_uv = nn.Parameter(torch.randn(n_heads, v_dim, kv_rank) * kv_rank ** -0.5)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)
        self.scale = (nope_dim + rope_dim) ** -0.5

    def forward(
        self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        b, t, _ = x.shape
        past = 0 if cache is None else cache[0].shape[1]
        pos = torch.arange(past, past + t, device=x.device)

        q = self.wq(x).view(b, t, self.n_heads, -1)
        q_nope, q_pe = q.split([self.nope_dim, self.rope_dim], dim=-1)
        q_pe = rope(q_pe, pos)

        latent, k_pe = self.wkv_down(x).split([self.kv_rank, self.rope_dim], dim=-1)
        latent = latent * torch.rsqrt(latent.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain
        k_pe = rope(k_pe, pos)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)

        q_latent = torch.einsum("bthn,hnr->bthr", q_nope, self.w_uk)
        scores = torch.einsum("bthr,bsr->bhts", q_latent, latent) + torch.einsum("bthp,bsp->bhts", q_pe, k_pe)
        hidden = torch.arange(past + t, device=x.device)[None, :] > pos[:, None]
        probs = (scores * self.scale).masked_fill(hidden, float("-inf")).softmax(dim=-1)

        ctx = torch.einsum("bhts,bsr->bthr", probs, latent)
        out = torch.einsum("bthr,hvr->bthv", ctx, self.w_uv)
        return self.wo(out.reshape(b, t, -1)), (latent, k_pe)
