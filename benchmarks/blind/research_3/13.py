import torch
from torch import nn, einsum


class MaskedCrossAttention(nn.Module):
    """Text queries look at the resampled features of the image they belong to.

    Args:
        dim: width of the text stream
        dim_visual: width of the visual features
        only_attend_immediate_media: each text token sees the last image before it only;
            otherwise all images that came before it

    ``media_locations`` is a bool tensor [B, T_txt], True where an <image> token stands.
    Text that comes before any image has nothing to look at.
    """

    def __init__(self, dim=64, dim_visual=48, dim_head=16, heads=4, only_attend_immediate_media=True):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads

        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim_visual, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)
        self.only_attend_immediate_media = only_attend_immediate_media

    def _split(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.heads, -1).transpose(1, 2)

    def forward(self, x, media, media_locations=None):
        """
        x: text features [B, T_txt, D_txt]
        media: image features [B, T_img, n, D_img], n latents per image
        """
        T_img, n = media.shape[1:3]
        h = self.heads

        x = self.norm(x)
        q = self._split(self.to_q(x)) * self.scale
        media = media.flatten(1, 2)
        k, v = self.to_kv(media).chunk(2, dim=-1)
        k, v = self._split(k), self._split(v)

        sim = einsum("b h i d, b h j d -> b h i j", q, k)

        if media_locations is not None:
            text_time = media_locations.long().cumsum(dim=-1)
            media_time = torch.arange(T_img, device=x.device) + 1
            media_time = media_time.repeat_interleave(n)

            compare = torch.eq if self.only_attend_immediate_media else torch.ge
            text_to_media_mask = compare(text_time[:, None, :, None], media_time[None, None, None, :])
            sim = sim.masked_fill(~text_to_media_mask, -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        out = out.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)
        return self.to_out(out)
