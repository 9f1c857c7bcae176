from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class PerceiverResamplerLayer(nn.Module):
    """Latents attend to the media features and to themselves (Flamingo resampler layer).

    Args of forward:
        x: (batch, n, dim) features
        latents: (batch, m, dim)
        mask: (batch, n) bool, True for valid features
    """

    def __init__(self, dim: int = 64, dim_head: int = 16, heads: int = 4, ff_mult: int = 2):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        inner = dim_head * heads
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.ff = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim * ff_mult), nn.GELU(), nn.Linear(dim * ff_mult, dim)
        )

    def attend(self, x, latents, mask: Optional[torch.Tensor]):
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        b, m, _ = latents.shape
        q = self.to_q(latents)
        kv_input = torch.cat((x, latents), dim=1)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, t.shape[1], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q * self.scale, k)
        if mask is not None:
            mask = F.pad(mask, (m, 0), value=True)
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, m, -1))

    def forward(self, x, latents, mask=None):
        latents = latents + self.attend(x, latents, mask)
        return latents + self.ff(latents)
