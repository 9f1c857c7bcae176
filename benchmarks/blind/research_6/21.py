import torch
import torch.nn as nn
import torch.nn.functional as F


class PerceiverResampler(nn.Module):
    """Turns any number of visual features into ``num_latents`` tokens. The latents attend
    to the features and to themselves."""

    def __init__(self, dim, num_heads, num_latents):
        super().__init__()
        self.h = num_heads
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, feats):
        b = feats.size(0)
        lat = self.latents.expand(b, -1, -1)
        z = self.norm_latents(lat)
        ctx = torch.cat((self.norm_media(feats), z), dim=1)
        q = self.to_q(z)
        k, v = self.to_kv(ctx).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.norm(lat + self.to_out(y))


class GatedImageCrossAttention(nn.Module):
    """Cross attention layer that is put between the layers of a frozen language model.

    Both tanh gates start at zero, so a fresh layer is exactly the identity and the
    language model is left intact; the gates are learned.

    has_image: optional bool [B]; samples without image only pass the text feed-forward.
    """

    def __init__(self, dim=64, num_heads=4, num_latents=8):
        super().__init__()
        self.h = num_heads
        self.resampler = PerceiverResampler(dim, num_heads, num_latents)
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.attn_gate = nn.Parameter(torch.tensor([0.0]))
        self.ff = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False)
        )
        self.ff_gate = nn.Parameter(torch.tensor([0.0]))

    def forward(self, text, feats, has_image=None):
        media = self.resampler(feats)
        q = self.to_q(self.norm(text))
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        y = self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        if has_image is not None:
            y = y * has_image.view(-1, 1, 1).to(y.dtype)
        text = text + y * self.attn_gate.tanh()
        return text + self.ff(text) * self.ff_gate.tanh()
