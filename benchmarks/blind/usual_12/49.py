import torch
from einops import rearrange, repeat
from torch import nn


class ResamplerLayer(nn.Module):
    def __init__(self, dim, heads, dim_head, ff_mult):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head**-0.5
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.ff = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, ff_mult * dim, bias=False),
            nn.GELU(),
            nn.Linear(ff_mult * dim, dim, bias=False),
        )

    def forward(self, media, latents, mask):
        residual = latents
        media, latents = self.norm_media(media), self.norm_latents(latents)
        q = rearrange(self.to_q(latents) * self.scale, "b n (h d) -> b h n d", h=self.heads)
        kv = self.to_kv(torch.cat((media, latents), dim=1))
        k, v = rearrange(kv, "b n (two h d) -> two b h n d", two=2, h=self.heads)
        sim = torch.einsum("bhid,bhjd->bhij", q, k)
        sim = sim.masked_fill(~mask[:, None, None, :], float("-inf"))
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        out = torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        latents = residual + self.to_out(rearrange(out, "b h n d -> b n (h d)"))
        return latents + self.ff(latents)


class PerceiverResampler(nn.Module):
    """Resampler of Flamingo: a variable number of visual tokens to ``num_latents`` tokens.

    Keys and values come from the visual tokens and from the latents together, so the rows of
    the attention are never empty, even for a sample without any visual token. There is no
    positional term here; the caller adds the time embedding to ``media``.

    media_mask: bool (batch, length), True for existing visual tokens.
    """

    def __init__(self, dim=64, depth=2, num_heads=4, dim_head=16, num_latents=8, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.layers = nn.ModuleList(ResamplerLayer(dim, num_heads, dim_head, ff_mult) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, media, media_mask=None):
        b, n, _ = media.shape
        latents = repeat(self.latents, "n d -> b n d", b=b)
        mask = torch.ones(b, n + latents.shape[1], dtype=torch.bool, device=media.device)
        if media_mask is not None:
            mask[:, :n] = media_mask
        for layer in self.layers:
            latents = layer(media, latents, mask)
        return self.norm(latents)
