import torch
from einops import rearrange
from torch import einsum, nn


class MaskedCrossAttention(nn.Module):
    """Cross attention of the Flamingo language model on visual tokens.

    Every text token attends to the latents of the last image that precedes it in the text.

    x                [b, t, dim]      text
    media            [b, m, n, dim]   m images with n latents each
    media_locations  [b, t] bool      True where the text holds an <image> tag
    """

    def __init__(self, *, dim=64, dim_visual=None, dim_head=16, heads=4):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim_visual or dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, media, media_locations=None):
        m, n = media.shape[1], media.shape[2]
        h = self.heads

        x = self.norm(x)
        q = self.to_q(x)
        media = rearrange(media, "b m n d -> b (m n) d")
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=h) for t in (q, k, v))
        q = q * self.scale

        sim = einsum("b h i d, b h j d -> b h i j", q, k)

        if media_locations is not None:
            # number of the image that is current at each text token, counted from 1
            text_time = media_locations.cumsum(dim=-1)
            media_time = torch.arange(m, device=x.device).repeat_interleave(n) + 1
            text_to_media = rearrange(text_time, "b i -> b 1 i 1") == rearrange(media_time, "j -> 1 1 1 j")
            sim = sim.masked_fill(~text_to_media, -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.to_out(out)
