import torch
from torch import nn


def FeedForward(dim, mult=4):
    inner_dim = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner_dim, bias=False),
        nn.GELU(),
        nn.Linear(inner_dim, dim, bias=False),
    )


class PerceiverAttention(nn.Module):
    def __init__(self, *, dim, dim_head=64, heads=8):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        inner_dim = dim_head * heads
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, latents, mask=None):
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        b, n_latents, h = latents.shape[0], latents.shape[1], self.heads

        q = self.to_q(latents)
        # the latents are keys and values as well
        k, v = self.to_kv(torch.cat((x, latents), dim=-2)).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, t.shape[1], h, -1).transpose(1, 2) for t in (q, k, v))
        q = q * self.scale

        sim = torch.einsum("bhid,bhjd->bhij", q, k)
        if mask is not None:
            mask = torch.cat((mask, mask.new_ones(b, n_latents)), dim=-1)
            sim = sim.masked_fill(~mask[:, None, None, :], float("-inf"))
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n_latents, -1))


class PerceiverResampler(nn.Module):
    """Turns a variable number of image / video features into ``num_latents`` tokens.

    Input:  ``(batch, frames, patches, dim)``, or ``(batch, patches, dim)`` for a single image.
    ``frame_mask``: ``(batch, frames)`` bool, True for frames that exist. A sample without any frame is
    allowed, its latents then only look at each other.
    Output: ``(batch, num_latents, dim)``.
    """

    def __init__(self, *, dim=64, depth=2, dim_head=16, heads=4, num_latents=8, max_num_frames=16, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim) * 0.02)
        self.frame_embs = nn.Parameter(torch.randn(max_num_frames, dim) * 0.02)
        self.layers = nn.ModuleList([
            nn.ModuleList([
                PerceiverAttention(dim=dim, dim_head=dim_head, heads=heads),
                FeedForward(dim=dim, mult=ff_mult),
            ])
            for _ in range(depth)
        ])
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, frame_mask=None):
        if x.ndim == 3:
            x = x.unsqueeze(1)
        b, frames, patches, _ = x.shape
        assert frames <= self.frame_embs.shape[0], "more frames than max_num_frames"

        x = x + self.frame_embs[:frames].unsqueeze(1)
        x = x.flatten(1, 2)
        mask = None
        if frame_mask is not None:
            mask = frame_mask.bool().repeat_interleave(patches, dim=1)

        latents = self.latents.unsqueeze(0).expand(b, -1, -1)
        for attn, ff in self.layers:
            latents = attn(x, latents, mask=mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
