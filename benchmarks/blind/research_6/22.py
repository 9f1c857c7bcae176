import torch
from torch import nn


class MaskedCrossAttention(nn.Module):
    """Cross attention from interleaved text to images.

    Every text token sees only the latents of the last image that precedes it (the
    image token itself included). Text before the first image gets zeros.

    x:               [B, L, dim] text states
    media:           [B, T_img, n, dim_visual] latents of the images, in order
    media_locations: bool [B, L], True at the image tokens
    """

    def __init__(self, *, dim=64, dim_visual=64, dim_head=16, heads=4):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim_visual, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, media, media_locations=None):
        b, l, _ = x.shape
        n_img, n_lat = media.shape[1:3]

        q = self.to_q(self.norm(x))
        k, v = self.to_kv(media.flatten(1, 2)).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, -1, self.heads, t.size(-1) // self.heads).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q * self.scale, k)

        if media_locations is not None:
            text_time = media_locations.long().cumsum(dim=-1)
            media_time = torch.arange(n_img, device=x.device).repeat_interleave(n_lat)
            same = text_time[:, None, :, None] == media_time
            sim = sim.masked_fill(~same, -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        if media_locations is not None:
            no_image_yet = (text_time == 0)[:, None, :, None]
            attn = attn.masked_fill(no_image_yet, 0.0)

        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, l, -1))
