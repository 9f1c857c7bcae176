import torch
from einops import rearrange, repeat
from torch import einsum, nn


def feed_forward(dim, mult=4):
    inner = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim), nn.Linear(dim, inner, bias=False), nn.GELU(), nn.Linear(inner, dim, bias=False)
    )


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
        h = self.heads

        q = self.to_q(latents)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=h) for t in (q, k, v))

        sim = einsum("b i d, b j d -> b i j", q * self.scale, k)
        if mask is not None:
            mask = mask.bool().repeat(h, 1).unsqueeze(1)
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)

        out = einsum("b i j, b j d -> b i d", attn, v)
        return self.to_out(rearrange(out, "(b h) n d -> b n (h d)", h=h))


class PerceiverResampler(nn.Module):
    """Turns a variable number of media tokens into `num_latents` tokens.

    x: (batch, n, dim), mask: optional (batch, n), true for valid tokens.
    """

    def __init__(self, dim=64, depth=2, dim_head=16, heads=4, num_latents=8, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList([
                    PerceiverAttention(dim=dim, dim_head=dim_head, heads=heads),
                    feed_forward(dim=dim, mult=ff_mult),
                ])
            )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        latents = repeat(self.latents, "n d -> b n d", b=x.shape[0])
        for attn, ff in self.layers:
            latents = attn(x, latents, mask=mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
