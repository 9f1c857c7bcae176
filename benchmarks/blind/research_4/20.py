import torch
from einops import rearrange, repeat
from torch import einsum, nn


def FeedForward(dim, mult=4):
    inner = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner, bias=False),
        nn.GELU(),
        nn.Linear(inner, dim, bias=False),
    )


class MaskedCrossAttention(nn.Module):
    def __init__(self, *, dim, dim_visual, dim_head=64, heads=8):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        inner = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim_visual, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, media, media_locations=None):
        n_media, n_latents = media.shape[1:3]
        x = self.norm(x)
        q = self.to_q(x)
        media = rearrange(media, "b m n d -> b (m n) d")
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))

        sim = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        if media_locations is not None:
            text_time = media_locations.long().cumsum(dim=-1)
            media_time = torch.arange(n_media, device=x.device) + 1
            media_time = repeat(media_time, "m -> 1 1 1 (m n)", n=n_latents)
            same = rearrange(text_time, "b i -> b 1 i 1") == media_time
            sim = sim.masked_fill(~same, -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class GatedCrossAttentionBlock(nn.Module):
    """Gated cross-attention of a visual language model on interleaved images and text.

    ``media_locations`` (bool, [B, T]) is True at each image placeholder. A text token reads the latest image that
    precedes it and no other; the text ahead of the first image has no image to read. The tanh gates start at zero.

    Shapes: x [B, T, dim]; media [B, images, latents, dim_visual].
    """

    def __init__(self, dim=128, dim_visual=64, dim_head=32, heads=4, ff_mult=4):
        super().__init__()
        self.attn = MaskedCrossAttention(dim=dim, dim_visual=dim_visual, dim_head=dim_head, heads=heads)
        self.attn_gate = nn.Parameter(torch.zeros(1))
        self.ff = FeedForward(dim, mult=ff_mult)
        self.ff_gate = nn.Parameter(torch.zeros(1))

    def forward(self, x, media, media_locations=None):
        x = self.attn(x, media, media_locations=media_locations) * self.attn_gate.tanh() + x
        x = self.ff(x) * self.ff_gate.tanh() + x
        return x
