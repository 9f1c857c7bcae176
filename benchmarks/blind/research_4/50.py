import torch
from einops import rearrange, repeat
from torch import einsum, nn


def FeedForward(dim, mult=4):
    return nn.Sequential(
        nn.LayerNorm(dim), nn.Linear(dim, dim * mult, bias=False), nn.GELU(), nn.Linear(dim * mult, dim, bias=False)
    )


class PerceiverAttention(nn.Module):
    """Latents query the media features *and themselves*: keys and values come from the concatenation of both."""

    def __init__(self, dim, dim_head, heads):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        inner = dim_head * heads
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, latents, media_mask=None):
        x, latents = self.norm_media(x), self.norm_latents(latents)
        q = self.to_q(latents)
        k, v = self.to_kv(torch.cat((x, latents), dim=1)).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))

        sim = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        if media_mask is not None:
            always = media_mask.new_ones(media_mask.shape[0], latents.shape[1])
            visible = torch.cat((media_mask, always), dim=1)
            sim = sim.masked_fill(~rearrange(visible, "b j -> b 1 1 j"), -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class FrameResampler(nn.Module):
    """Turns the patches of a video of any length into a fixed number of latents.

    Args:
        dim: width of the features.
        depth: layers.
        num_latents: latents in the output.
        max_frames: longest video.

    Shapes: frames [B, F, N, dim], frame_mask bool [B, F] (True = real frame) -> [B, num_latents, dim].
    """

    def __init__(self, dim=96, depth=2, dim_head=24, heads=4, num_latents=16, max_frames=8, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim) * 0.02)
        self.frame_pos = nn.Parameter(torch.randn(max_frames, 1, dim) * 0.02)
        self.layers = nn.ModuleList(
            [nn.ModuleList([PerceiverAttention(dim, dim_head, heads), FeedForward(dim, ff_mult)]) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, frames, frame_mask=None):
        b, f, n, _ = frames.shape
        x = rearrange(frames + self.frame_pos[:f], "b f n d -> b (f n) d")
        mask = None if frame_mask is None else repeat(frame_mask, "b f -> b (f n)", n=n)
        latents = repeat(self.latents, "n d -> b n d", b=b)
        for attn, ff in self.layers:
            latents = attn(x, latents, mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
