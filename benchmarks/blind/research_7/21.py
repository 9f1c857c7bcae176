import torch
from torch import nn


class MaskedCrossAttention(nn.Module):
    """Cross-attention from text to the visual tokens of interleaved images.

    Every text token attends to the image that most recently precedes it; text before the
    first image receives nothing from the visual side.

    x:               [B, T, dim]
    media:           [B, M, N, dim_visual]   M images with N latents each
    media_locations: [B, T] bool             True at the <image> tokens
    """

    def __init__(self, dim: int = 64, dim_visual: int = 64, dim_head: int = 16, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        inner = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim_visual, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, media, media_locations):
        B, T, _ = x.shape
        M, N = media.shape[1:3]

        q = self.to_q(self.norm(x))
        k, v = self.to_kv(media.flatten(1, 2)).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))

        sim = (q * self.scale) @ k.transpose(-1, -2)

        text_time = media_locations.long().cumsum(dim=-1)
        media_time = torch.arange(1, M + 1, device=x.device).repeat_interleave(N)
        same_image = text_time[:, None, :, None] == media_time[None, None, None, :]
        sim = sim.masked_fill(~same_image, -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = (attn @ v).transpose(1, 2).flatten(2)
        return self.to_out(out)
