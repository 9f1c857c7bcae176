import torch
from einops import rearrange, repeat
from torch import einsum, nn


def exists(val):
    return val is not None


def FeedForward(dim, mult=4):
    inner_dim = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner_dim, bias=False),
        nn.GELU(),
        nn.Linear(inner_dim, dim, bias=False),
    )


# gated cross attention

class MaskedCrossAttention(nn.Module):
    """
    x: (b, t, d) text
    media: (b, m, n, d) with m images of n latents each
    media_locations: (b, t) boolean, True where an image is inserted in the text

    With only_attend_immediate_media a text token looks at the last image before it only,
    otherwise at all images before it.
    """

    def __init__(
        self,
        dim=64,
        *,
        dim_head=16,
        heads=4,
        only_attend_immediate_media=True
    ):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads

        self.norm = nn.LayerNorm(dim)

        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

        self.only_attend_immediate_media = only_attend_immediate_media

    def forward(self, x, media, media_locations=None):
        h = self.heads
        n_latents = media.shape[-2]

        x = self.norm(x)

        q = self.to_q(x)
        media = rearrange(media, 'b m n d -> b (m n) d')

        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=h), (q, k, v))

        q = q * self.scale
        sim = einsum('... i d, ... j d -> ... i j', q, k)

        if exists(media_locations):
            text_time = media_locations.long().cumsum(dim=-1)
            n_media = k.shape[-2] // n_latents
            media_time = repeat(torch.arange(n_media, device=x.device) + 1, 'm -> (m n)', n=n_latents)

            text_time = rearrange(text_time, 'b i -> b 1 i 1')
            media_time = rearrange(media_time, 'j -> 1 1 1 j')
            if self.only_attend_immediate_media:
                text_to_media_mask = text_time == media_time
            else:
                text_to_media_mask = text_time >= media_time
            sim = sim.masked_fill(~text_to_media_mask, -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = einsum('... i j, ... j d -> ... i d', attn, v)
        out = rearrange(out, 'b h n d -> b n (h d)')
        return self.to_out(out)
