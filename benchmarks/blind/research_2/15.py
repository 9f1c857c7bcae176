import torch
from torch import nn
from einops import rearrange, repeat


class FeedForward(nn.Sequential):
    def __init__(self, dim, mult=4):
        super().__init__(
            nn.LayerNorm(dim),
            nn.Linear(dim, dim * mult, bias=False),
            nn.GELU(),
            nn.Linear(dim * mult, dim, bias=False),
        )


class MaskedCrossAttention(nn.Module):
    def __init__(self, *, dim, dim_head=16, heads=4):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, media, media_locations=None):
        h = self.heads
        num_media, latents = media.shape[1:3]

        q = self.to_q(self.norm(x))
        media = rearrange(media, 'b t n d -> b (t n) d')
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=h) for t in (q, k, v))
        q = q * self.scale
        sim = torch.einsum('b h i d, b h j d -> b h i j', q, k)

        if media_locations is not None:
            # every text token looks at the media that immediately precedes it
            text_time = media_locations.long().cumsum(dim=-1)
            media_time = torch.arange(num_media, device=x.device) + 1
            text_to_media_mask = rearrange(text_time, 'b i -> b 1 i 1') == repeat(
                media_time, 'j -> 1 1 1 (j n)', n=latents)
            sim = sim.masked_fill(~text_to_media_mask, -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = torch.einsum('b h i j, b h j d -> b h i d', attn, v)
        out = rearrange(out, 'b h n d -> b n (h d)')
        return self.to_out(out)


class GatedCrossAttentionBlock(nn.Module):
    """Flamingo GATED XATTN-DENSE layer.

    x:               text, (batch, tokens, dim)
    media:           resampled images, (batch, images, latents, dim)
    media_locations: (batch, tokens) bool, True at every <image> token. A text token is conditioned on the
                     last image before it and on no image when there is none.
    """

    def __init__(self, dim=64, dim_head=16, heads=4, ff_mult=4, gate_init=0.5):
        super().__init__()
        self.attn = MaskedCrossAttention(dim=dim, dim_head=dim_head, heads=heads)
        self.attn_gate = nn.Parameter(torch.tensor([float(gate_init)]))
        self.ff = FeedForward(dim, mult=ff_mult)
        self.ff_gate = nn.Parameter(torch.tensor([float(gate_init)]))

    def forward(self, x, media, media_locations=None):
        x = self.attn(x, media, media_locations=media_locations) * self.attn_gate.tanh() + x
        x = self.ff(x) * self.ff_gate.tanh() + x
        return x
