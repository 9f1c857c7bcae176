import torch
import torch.nn as nn
import torch.nn.functional as F


class PerceiverResampler(nn.Module):
    """Flamingo-style resampler: a fixed set of latents reads a variable number of features.

    In each layer the keys/values are the features together with the latents themselves.
    """

    def __init__(self, dim=64, depth=2, heads=4, dim_head=16, num_latents=8, ff_mult=2):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.latents = nn.Parameter(torch.randn(num_latents, dim) * 0.02)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.append(nn.ModuleDict({
                "norm_media": nn.LayerNorm(dim),
                "norm_latents": nn.LayerNorm(dim),
                "to_q": nn.Linear(dim, inner, bias=False),
                "to_kv": nn.Linear(dim, inner * 2, bias=False),
                "to_out": nn.Linear(inner, dim, bias=False),
                "ff": nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim * ff_mult), nn.GELU(),
                                    nn.Linear(dim * ff_mult, dim)),
            }))
        self.norm = nn.LayerNorm(dim)

    def _attend(self, layer, x, latents, mask):
        x = layer["norm_media"](x)
        latents = layer["norm_latents"](latents)
        b, m, _ = latents.shape
        q = layer["to_q"](latents)
        kv_input = torch.cat((x, latents), dim=1)
        k, v = layer["to_kv"](kv_input).chunk(2, dim=-1)
        q, k, v = (t.view(b, t.size(1), self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attn_mask = None
        if mask is not None:
            attn_mask = F.pad(mask, (m, 0), value=True)[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return layer["to_out"](out.transpose(1, 2).flatten(2))

    def forward(self, x, mask=None):
        """
        x:    (batch, n, dim)
        mask: bool (batch, n), True where a feature exists
        """
        latents = self.latents.unsqueeze(0).expand(x.size(0), -1, -1)
        for layer in self.layers:
            latents = latents + self._attend(layer, x, latents, mask)
            latents = latents + layer["ff"](latents)
        return self.norm(latents)
