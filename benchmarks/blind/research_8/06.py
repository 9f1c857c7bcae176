import torch
import torch.nn as nn


class MediaCrossAttention(nn.Module):
    """Text-to-image cross attention of Flamingo.

    Every text token looks at the latents of the image that precedes it most closely. Text in front of
    the first image has nothing to look at and receives no visual information.

    Args:
        x: [B, T, dim] text
        media: [B, M, L, dim_media] M images with L latents each
        media_locations: [B, T] bool, True at the <image> tokens
    """

    def __init__(self, dim=64, dim_media=48, dim_head=16, heads=4, only_attend_immediate_media=True):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.only_attend_immediate_media = only_attend_immediate_media
        inner = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim_media, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def _heads(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.heads, -1).transpose(1, 2)

    def forward(self, x, media, media_locations=None):
        b, m, l, _ = media.shape
        x = self.norm(x)
        q = self._heads(self.to_q(x)) * self.scale
        k, v = self.to_kv(media.reshape(b, m * l, -1)).chunk(2, dim=-1)
        k, v = self._heads(k), self._heads(v)

        sim = torch.einsum("bhid,bhjd->bhij", q, k)
        if media_locations is not None:
            text_time = media_locations.long().cumsum(dim=-1)
            media_time = torch.arange(1, m + 1, device=x.device).repeat_interleave(l)
            if self.only_attend_immediate_media:
                visible = text_time[:, :, None] == media_time[None, None, :]
            else:
                visible = text_time[:, :, None] >= media_time[None, None, :]
            sim = sim.masked_fill(~visible[:, None], -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        out = out.transpose(1, 2).reshape(b, x.size(1), -1)
        return self.to_out(out)
