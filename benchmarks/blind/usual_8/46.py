import torch
import torch.nn.functional as F
from torch import nn


def FeedForward(dim, mult=4):
    inner = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner, bias=False),
        nn.GELU(),
        nn.Linear(inner, dim, bias=False),
    )


class PerceiverAttention(nn.Module):
    def __init__(self, dim, dim_head=16, heads=4):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner = dim_head * heads
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, latents, mask=None):
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        b, m, _ = latents.shape

        # the latents are queries, and keys next to the media tokens
        q = self.to_q(latents)
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (t.view(b, -1, self.heads, t.size(-1) // self.heads).transpose(1, 2) for t in (q, k, v))

        sim = torch.matmul(q * self.scale, k.transpose(-1, -2))
        if mask is not None:
            mask = F.pad(mask, (m, 0), value=True)
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(b, m, -1)
        return self.to_out(out)


class PerceiverResampler(nn.Module):
    """Compresses a variable number of media tokens into ``num_latents`` vectors.

    x: (batch, n, dim); mask: (batch, n), True for valid media tokens
    """

    def __init__(self, dim=64, depth=2, dim_head=16, heads=4, num_latents=8, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.layers = nn.ModuleList(
            [
                nn.ModuleList([PerceiverAttention(dim, dim_head, heads), FeedForward(dim, ff_mult)])
                for _ in range(depth)
            ]
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        latents = self.latents.unsqueeze(0).expand(x.size(0), -1, -1)
        for attn, ff in self.layers:
            latents = attn(x, latents, mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
