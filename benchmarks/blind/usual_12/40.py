import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import nn


def exists(val):
    return val is not None


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim, heads=4, dim_head=16, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.scale = dim_head**-0.5
        self.heads = heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context, mask=None):
        h = self.heads
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = map(lambda t: rearrange(t, "b n (h d) -> (b h) n d", h=h), (q, k, v))

        sim = torch.einsum("b i d, b j d -> b i j", q, k) * self.scale
        if exists(mask):
            mask = repeat(mask, "b j -> (h b) 1 j", h=h)
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)

        attn = self.dropout(sim.softmax(dim=-1))
        out = torch.einsum("b i j, b j d -> b i d", attn, v)
        return self.to_out(rearrange(out, "(b h) n d -> b n (h d)", h=h))


class PerceiverEncoder(nn.Module):
    """Reads a padded byte array into a fixed number of latents.

    data: (batch, length, input_dim); mask: bool (batch, length), True for real elements.
    """

    def __init__(self, input_dim=32, latent_dim=64, num_latents=8, depth=2, heads=4, dim_head=16):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, latent_dim) * 0.02)
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList(
                    [
                        nn.LayerNorm(latent_dim),
                        nn.LayerNorm(input_dim),
                        CrossAttention(latent_dim, input_dim, heads, dim_head),
                        nn.LayerNorm(latent_dim),
                        nn.Sequential(
                            nn.Linear(latent_dim, 4 * latent_dim), nn.GELU(), nn.Linear(4 * latent_dim, latent_dim)
                        ),
                    ]
                )
            )

    def forward(self, data, mask=None):
        x = repeat(self.latents, "n d -> b n d", b=data.shape[0])
        for norm_x, norm_c, attn, norm_ff, ff in self.layers:
            x = x + attn(norm_x(x), norm_c(data), mask=mask)
            x = x + ff(norm_ff(x))
        return x
