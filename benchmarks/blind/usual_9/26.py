import torch
from torch import nn
from einops import rearrange, repeat


def FeedForward(dim, mult=4):
    inner_dim = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner_dim, bias=False),
        nn.GELU(),
        nn.Linear(inner_dim, dim, bias=False),
    )


class PerceiverAttention(nn.Module):
    def __init__(self, *, dim, dim_head=32, heads=4):
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

        q = rearrange(self.to_q(latents), "b n (h d) -> b h n d", h=self.heads)

        # the latents also attend to one another
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (k, v))

        sim = torch.einsum("b h i d, b h j d -> b h i j", q * self.scale, k)

        if mask is not None:
            latent_mask = mask.new_ones(mask.shape[0], latents.shape[1])
            mask = torch.cat((latent_mask, mask), dim=-1)
            sim = sim.masked_fill(~rearrange(mask, "b j -> b 1 1 j"), -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class PerceiverResampler(nn.Module):
    """Resamples a padded sequence of features to a fixed number of latents.

    x: (batch, n, dim)
    mask: (batch, n) bool, True for real features
    """

    def __init__(self, dim=128, depth=2, dim_head=32, heads=4, num_latents=8, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.layers = nn.ModuleList(
            [
                nn.ModuleList([PerceiverAttention(dim=dim, dim_head=dim_head, heads=heads), FeedForward(dim, ff_mult)])
                for _ in range(depth)
            ]
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        latents = repeat(self.latents, "n d -> b n d", b=x.shape[0])
        for attn, ff in self.layers:
            latents = attn(x, latents, mask=mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
