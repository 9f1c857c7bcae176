import torch
import torch.nn as nn


class GatedCrossAttentionBlock(nn.Module):
    """Flamingo's gated cross-attention: text attends to the images.

    The tanh gates start at zero, so a freshly built block returns its input. A text token only sees the
    last image before it; `text_time` says which one: 1 for the first image, 0 for tokens before any
    image. Tokens with text_time 0 have nothing to attend to, and their attention is zeroed.

    x: (batch, text, dim); media: (batch, images, latents, dim); text_time: (batch, text) int
    """

    def __init__(self, dim: int = 64, dim_head: int = 16, heads: int = 4, ff_mult: int = 4):
        super().__init__()
        self.heads = heads
        self.scale = dim_head**-0.5
        inner = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.attn_gate = nn.Parameter(torch.tensor([0.0]))
        self.ff = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, dim * ff_mult, bias=False),
            nn.GELU(),
            nn.Linear(dim * ff_mult, dim, bias=False),
        )
        self.ff_gate = nn.Parameter(torch.tensor([0.0]))

    def attend(self, x, media, text_time):
        b, n, _ = x.shape
        images, latents = media.shape[1:3]
        media = media.flatten(1, 2)
        q = self.to_q(self.norm(x)).view(b, n, self.heads, -1).transpose(1, 2) * self.scale
        k, v = self.to_kv(media).chunk(2, dim=-1)
        k = k.reshape(b, images * latents, self.heads, -1).transpose(1, 2)
        v = v.reshape(b, images * latents, self.heads, -1).transpose(1, 2)
        sim = q @ k.transpose(-1, -2)

        media_time = torch.arange(1, images + 1, device=x.device).repeat_interleave(latents)
        match = text_time[:, None, :, None] == media_time[None, None, None, :]
        sim = sim.masked_fill(~match, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        attn = attn.masked_fill((text_time == 0)[:, None, :, None], 0.0)
        out = (attn @ v).transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)

    def forward(self, x, media, text_time):
        x = x + self.attend(x, media, text_time) * self.attn_gate.tanh()
        return x + self.ff(x) * self.ff_gate.tanh()
