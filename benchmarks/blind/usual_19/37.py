import torch
from einops import rearrange, repeat
from torch import einsum, nn


class PerceiverResampler(nn.Module):
    """Turns a variable number of features into a fixed number of latents.

    As in Flamingo, the latents are appended to the features before keys and values are computed.

    forward(x, mask):
        x:    (b, n, dim)
        mask: (b, n) bool, True for the features that are not padding
    """

    def __init__(self, dim=64, heads=4, dim_head=16, num_latents=8, ff_mult=2):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.latents = nn.Parameter(torch.randn(num_latents, dim) * 0.02)
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.ff = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim * ff_mult), nn.GELU(), nn.Linear(dim * ff_mult, dim)
        )
        self.norm_out = nn.LayerNorm(dim)

    def attend(self, x, latents, mask):
        x = self.norm_media(x)
        normed = self.norm_latents(latents)
        q = self.to_q(normed)
        k, v = self.to_kv(torch.cat((x, normed), dim=1)).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))

        sim = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        if mask is not None:
            always = mask.new_ones((mask.shape[0], latents.shape[1]))
            full = torch.cat((always, mask), dim=1)
            sim = sim.masked_fill(~rearrange(full, "b j -> b 1 1 j"), -torch.finfo(sim.dtype).max)

        out = einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))

    def forward(self, x, mask=None):
        latents = repeat(self.latents, "n d -> b n d", b=x.shape[0])
        latents = latents + self.attend(x, latents, mask)
        latents = latents + self.ff(latents)
        return self.norm_out(latents)
