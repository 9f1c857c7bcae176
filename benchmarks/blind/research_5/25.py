from typing import Optional

import torch
from torch import nn


def feed_forward(dim: int, mult: int = 4) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, dim * mult, bias=False),
        nn.GELU(),
        nn.Linear(dim * mult, dim, bias=False),
    )


class MediaCrossAttention(nn.Module):
    """Every text token looks at the image that directly precedes it, and only at that one."""

    def __init__(self, dim: int, dim_visual: int, dim_head: int, heads: int):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        inner = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim_visual, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x: torch.Tensor, media: torch.Tensor, media_locations: Optional[torch.Tensor] = None):
        b, m, n = media.shape[:3]
        q = self.to_q(self.norm(x))
        k, v = self.to_kv(media.reshape(b, m * n, -1)).chunk(2, dim=-1)
        q, k, v = (t.view(b, t.size(1), self.heads, -1).transpose(1, 2) for t in (q, k, v))

        sim = (q * self.scale) @ k.transpose(-1, -2)
        if media_locations is not None:
            # 1 from the first image token on, 2 from the second, ...
            text_time = media_locations.long().cumsum(dim=-1)
            media_time = torch.arange(1, m + 1, device=x.device).repeat_interleave(n)
            own_image = text_time[:, None, :, None] == media_time[None, None, None, :]
            sim = sim.masked_fill(~own_image, -torch.finfo(sim.dtype).max)

        attn = (sim - sim.amax(dim=-1, keepdim=True).detach()).softmax(dim=-1)
        out = (attn @ v).transpose(1, 2).flatten(2)
        return self.to_out(out)


class GatedCrossAttentionBlock(nn.Module):
    """Gated cross attention layer of Flamingo, put between the frozen layers of a language model.

    Args:
        x: text states ``[B, T, dim]``
        media: visual tokens ``[B, num_images, tokens_per_image, dim_visual]``
        media_locations: bool ``[B, T]``, True at the <image> tokens. Text before the first image
            has no picture to look at.
    """

    def __init__(self, dim: int = 64, dim_visual: int = 48, dim_head: int = 16, heads: int = 4,
                 gate_init: float = 0.1):
        super().__init__()
        self.attn = MediaCrossAttention(dim, dim_visual, dim_head, heads)
        self.attn_gate = nn.Parameter(torch.tensor([gate_init]))
        self.ff = feed_forward(dim)
        self.ff_gate = nn.Parameter(torch.tensor([gate_init]))

    def forward(self, x, media, media_locations=None):
        x = self.attn(x, media, media_locations) * self.attn_gate.tanh() + x
        return self.ff(x) * self.ff_gate.tanh() + x
