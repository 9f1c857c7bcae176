import torch
import torch.nn.functional as F
from torch import nn, einsum


class PerceiverAttention(nn.Module):
    def __init__(self, dim, dim_head=16, heads=4):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, latents, mask=None):
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        b, n, h = x.shape[0], latents.shape[1], self.heads

        q = self.to_q(latents)
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, t.shape[1], h, -1).transpose(1, 2) for t in (q, k, v))

        sim = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        if mask is not None:
            mask = F.pad(mask, (n, 0), value=True)
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


def FeedForward(dim, mult=4):
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, dim * mult, bias=False),
        nn.GELU(),
        nn.Linear(dim * mult, dim, bias=False),
    )


class PerceiverResampler(nn.Module):
    """Resamples a variable number of media tokens into ``num_latents`` tokens.

    x: (b, n, dim), mask: (b, n) bool with True for real media tokens.
    """

    def __init__(self, dim=64, depth=2, dim_head=16, heads=4, num_latents=8, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.layers = nn.ModuleList(
            [nn.ModuleList([PerceiverAttention(dim, dim_head, heads), FeedForward(dim, ff_mult)])
             for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        latents = self.latents.unsqueeze(0).expand(x.shape[0], -1, -1)
        for attn, ff in self.layers:
            latents = attn(x, latents, mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
