import torch
import torch.nn.functional as F
from torch import nn
from einops import rearrange, repeat


def FeedForward(dim, mult=4):
    inner = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner, bias=False),
        nn.GELU(),
        nn.Linear(inner, dim, bias=False),
    )


class LatentCrossAttention(nn.Module):
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
        num_latents = latents.shape[-2]

        q = self.to_q(latents)
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=self.heads) for t in (q, k, v))

        sim = torch.einsum('b h i d, b h j d -> b h i j', q * self.scale, k)
        if mask is not None:
            mask = F.pad(mask, (num_latents, 0), value=True)
            sim = sim.masked_fill(~rearrange(mask, 'b j -> b 1 1 j'), -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)

        out = torch.einsum('b h i j, b h j d -> b h i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))


class FrameResampler(nn.Module):
    """Compresses a variable number of visual tokens into ``num_latents`` vectors.

    The latents look at the media tokens and at themselves.

    x:    (b, n, dim) visual tokens
    mask: (b, n) boolean, False on padding tokens
    """

    def __init__(self, dim=64, depth=2, dim_head=16, heads=4, num_latents=8, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.layers = nn.ModuleList([
            nn.ModuleList([
                LatentCrossAttention(dim, dim_head=dim_head, heads=heads),
                FeedForward(dim, mult=ff_mult),
            ]) for _ in range(depth)
        ])
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        latents = repeat(self.latents, 'n d -> b n d', b=x.shape[0])
        for attn, ff in self.layers:
            latents = attn(x, latents, mask=mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
