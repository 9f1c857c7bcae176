import torch
from torch import nn, einsum
from einops import rearrange, repeat


class PerceiverResampler(nn.Module):
    """Compresses a variable number of media tokens to a fixed number of latents (Flamingo).

    Keys and values are computed from the media tokens and the latents together, queries
    from the latents only; the latents therefore also see each other.

    x: (b, n, dim); mask: (b, n) bool, True for valid media tokens
    """

    def __init__(self, dim=64, num_latents=8, depth=2, heads=4, dim_head=16, ff_mult=2):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        inner = heads * dim_head
        self.latents = nn.Parameter(torch.randn(num_latents, dim) * 0.02)
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(nn.ModuleDict(dict(
                norm_media=nn.LayerNorm(dim),
                norm_latents=nn.LayerNorm(dim),
                to_q=nn.Linear(dim, inner, bias=False),
                to_kv=nn.Linear(dim, inner * 2, bias=False),
                to_out=nn.Linear(inner, dim, bias=False),
                ff=nn.Sequential(
                    nn.LayerNorm(dim),
                    nn.Linear(dim, dim * ff_mult, bias=False),
                    nn.GELU(),
                    nn.Linear(dim * ff_mult, dim, bias=False),
                ),
            )))
        self.norm = nn.LayerNorm(dim)

    def attend(self, layer, x, latents, mask):
        x = layer["norm_media"](x)
        latents = layer["norm_latents"](latents)
        q = layer["to_q"](latents)
        k, v = layer["to_kv"](torch.cat((x, latents), dim=-2)).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))

        sim = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        if mask is not None:
            keep = torch.cat((mask, mask.new_ones(mask.size(0), latents.size(1))), dim=-1)
            sim = sim.masked_fill(~rearrange(keep, "b j -> b 1 1 j"), -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        out = einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
        return layer["to_out"](rearrange(out, "b h n d -> b n (h d)"))

    def forward(self, x, mask=None):
        latents = repeat(self.latents, "n d -> b n d", b=x.size(0))
        for layer in self.layers:
            latents = latents + self.attend(layer, x, latents, mask)
            latents = latents + layer["ff"](latents)
        return self.norm(latents)
