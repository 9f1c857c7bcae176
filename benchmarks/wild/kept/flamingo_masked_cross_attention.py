"""Out-of-place masked_fill is discarded, so text before the first image still attends to the media.

lucidrains/flamingo-pytorch #10 (2022)
https://github.com/lucidrains/flamingo-pytorch/issues/10
"""
import torch
from torch import nn, einsum


def exists(val):
    return val is not None


class _MaskedCrossAttentionBase(nn.Module):
    def __init__(self, *, dim, dim_head=16, heads=4):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads

        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def similarity(self, x, media):
        b, t, m, d = media.shape
        h = self.heads
        q = self.to_q(self.norm(x))
        k, v = self.to_kv(media.reshape(b, t * m, d)).chunk(2, dim=-1)
        q, k, v = map(lambda u: u.reshape(b, u.shape[1], h, -1).transpose(1, 2), (q, k, v))
        sim = einsum('b h i d, b h j d -> b h i j', q * self.scale, k)
        return sim, v

    def combine(self, attn, v):
        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        b, h, n, d = out.shape
        return self.to_out(out.transpose(1, 2).reshape(b, n, h * d))


def broken() -> nn.Module:
    class MaskedCrossAttention(_MaskedCrossAttentionBase):
        def forward(
            self,
            x,                      # text (batch, sequence, dim)
            media,                  # media tensor, encoded by perceiver resample - (batch, time, latents, dim)
            media_locations=None    # boolean tensor indicating positions of media - (batch, sequence)
        ):
            t, m = media.shape[1:3]
            sim, v = self.similarity(x, media)

            if exists(media_locations):
                text_time = media_locations.cumsum(dim=-1)  # at each boolean of True, increment the time counter
                media_time = torch.arange(t, device=x.device) + 1
                # text only attends to the most immediate preceding image
                text_to_media_mask = text_time[:, None, :, None] == media_time.repeat_interleave(m)
                sim = sim.masked_fill(~text_to_media_mask, -torch.finfo(sim.dtype).max)

            attn = sim.softmax(dim=-1)

            if exists(media_locations):
                # any text without a preceding media needs to have attention zeroed out
                text_without_media_mask = (text_time == 0)[:, None, :, None]
                attn.masked_fill(text_without_media_mask, 0.)

            return self.combine(attn, v)

    torch.manual_seed(0)
    return MaskedCrossAttention(dim=32)


def fixed() -> nn.Module:
    class MaskedCrossAttention(_MaskedCrossAttentionBase):
        def forward(
            self,
            x,                      # text (batch, sequence, dim)
            media,                  # media tensor, encoded by perceiver resample - (batch, time, latents, dim)
            media_locations=None    # boolean tensor indicating positions of media - (batch, sequence)
        ):
            t, m = media.shape[1:3]
            sim, v = self.similarity(x, media)

            if exists(media_locations):
                text_time = media_locations.cumsum(dim=-1)  # at each boolean of True, increment the time counter
                media_time = torch.arange(t, device=x.device) + 1
                # text only attends to the most immediate preceding image
                text_to_media_mask = text_time[:, None, :, None] == media_time.repeat_interleave(m)
                sim = sim.masked_fill(~text_to_media_mask, -torch.finfo(sim.dtype).max)

            attn = sim.softmax(dim=-1)

            if exists(media_locations):
                # any text without a preceding media needs to have attention zeroed out
                text_without_media_mask = (text_time == 0)[:, None, :, None]
                attn = attn.masked_fill(text_without_media_mask, 0.)

            return self.combine(attn, v)

    torch.manual_seed(0)
    return MaskedCrossAttention(dim=32)


def example():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(2, 10, 32, generator=g)
    media = torch.randn(2, 2, 3, 32, generator=g)
    loc = torch.zeros(2, 10, dtype=torch.bool)
    loc[0, [3, 6]] = True
    loc[1, [0, 5]] = True
    return (x, media), {"media_locations": loc}
