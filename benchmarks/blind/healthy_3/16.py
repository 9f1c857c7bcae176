import torch
from torch import nn, einsum
from einops import rearrange, repeat


def exists(val):
    return val is not None


def FeedForward(dim, mult=4):
    inner = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner, bias=False),
        nn.GELU(),
        nn.Linear(inner, dim, bias=False),
    )


class PerceiverAttention(nn.Module):
    def __init__(self, *, dim, dim_head, heads):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner = dim_head * heads

        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)

        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, latents, mask=None):
        """
        x: (b, n, d) media, latents: (b, m, d), mask: (b, n) bool of present media tokens
        """
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        m = latents.shape[1]

        q = self.to_q(latents) * self.scale

        # the latents attend to the media and to themselves
        k, v = self.to_kv(torch.cat((x, latents), dim=1)).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=self.heads) for t in (q, k, v))

        sim = einsum('b h i d, b h j d -> b h i j', q, k)

        if exists(mask):
            mask = nn.functional.pad(mask, (0, m), value=True)  # latents are always there
            mask = rearrange(mask, 'b j -> b 1 1 j')
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)

        # stable softmax: shifting all logits of a row leaves the result as it is
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))


class PerceiverResampler(nn.Module):
    """
    Turns any number of frames into a fixed number of tokens, as in Flamingo.

    frames: (b, f, v, d) patch features of f frames, or (b, v, d) for a single image
    frame_mask: (b, f) bool, True for real frames
    returns: (b, num_latents, d)
    """

    def __init__(self, dim=128, depth=2, dim_head=32, heads=4, num_latents=16, max_frames=8, ff_mult=4):
        super().__init__()
        self.max_frames = max_frames
        self.latents = nn.Parameter(torch.randn(num_latents, dim) * 0.02)
        self.frame_embs = nn.Parameter(torch.randn(max_frames, dim) * 0.02)

        self.layers = nn.ModuleList([
            nn.ModuleList([
                PerceiverAttention(dim=dim, dim_head=dim_head, heads=heads),
                FeedForward(dim, mult=ff_mult),
            ])
            for _ in range(depth)
        ])
        self.norm = nn.LayerNorm(dim)

    def forward(self, frames, frame_mask=None):
        if frames.ndim == 3:
            frames = rearrange(frames, 'b v d -> b 1 v d')

        b, f, v, _ = frames.shape
        assert f <= self.max_frames, f'at most {self.max_frames} frames, got {f}'

        x = frames + rearrange(self.frame_embs[:f], 'f d -> f 1 d')
        x = rearrange(x, 'b f v d -> b (f v) d')

        mask = None
        if exists(frame_mask):
            mask = repeat(frame_mask, 'b f -> b (f v)', v=v)

        latents = repeat(self.latents, 'm d -> b m d', b=b)
        for attn, ff in self.layers:
            latents = attn(x, latents, mask=mask) + latents
            latents = ff(latents) + latents

        return self.norm(latents)
