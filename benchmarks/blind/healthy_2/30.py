import math

import torch
from torch import nn
import torch.nn.functional as F
from einops import rearrange, repeat


def exists(val):
    return val is not None


def fourier_encode(x, max_freq, num_bands):
    """x in [-1, 1], shape (...,) -> (..., 2 * num_bands + 1)"""
    x = x.unsqueeze(-1)
    scales = torch.linspace(1., max_freq / 2, num_bands, device=x.device, dtype=x.dtype)
    ang = x * scales * math.pi
    return torch.cat((ang.sin(), ang.cos(), x), dim=-1)


class PreNorm(nn.Module):
    def __init__(self, dim, fn, context_dim=None):
        super().__init__()
        self.fn = fn
        self.norm = nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(context_dim) if exists(context_dim) else None

    def forward(self, x, **kwargs):
        x = self.norm(x)
        if exists(self.norm_context):
            kwargs.update(context=self.norm_context(kwargs['context']))
        return self.fn(x, **kwargs)


class GEGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4, dropout=0.):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim * mult * 2), GEGLU(), nn.Dropout(dropout), nn.Linear(dim * mult, dim))

    def forward(self, x):
        return self.net(x)


class Attention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=4, dim_head=32, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = context_dim if exists(context_dim) else query_dim
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context=None, mask=None):
        h = self.heads
        q = self.to_q(x)
        k, v = self.to_kv(context if exists(context) else x).chunk(2, dim=-1)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> (b h) n d', h=h), (q, k, v))
        sim = torch.einsum('b i d, b j d -> b i j', q, k) * self.scale
        if exists(mask):
            mask = repeat(mask, 'b j -> (b h) () j', h=h)
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        attn = self.dropout(sim.softmax(dim=-1))
        out = torch.einsum('b i j, b j d -> b i d', attn, v)
        return self.to_out(rearrange(out, '(b h) n d -> b n (h d)', h=h))


class PerceiverSeries(nn.Module):
    """Perceiver over sensor recordings whose time axis spans one fixed window.

    data: (b, n, channels); mask: optional (b, n) bool, False on samples that dropped out.
    With ``weight_tie_layers`` all rounds after the first share their weights.
    """

    def __init__(self, channels=6, num_classes=12, num_freq_bands=6, max_freq=32., depth=3,
                 num_latents=24, latent_dim=64, cross_heads=1, latent_heads=4, dim_head=16,
                 self_per_cross=1, dropout=0., weight_tie_layers=True):
        super().__init__()
        self.max_freq = max_freq
        self.num_freq_bands = num_freq_bands
        input_dim = channels + 2 * num_freq_bands + 1
        self.latents = nn.Parameter(torch.randn(num_latents, latent_dim) * 0.02)

        def make_round():
            return nn.ModuleList([
                PreNorm(latent_dim, Attention(latent_dim, input_dim, cross_heads, dim_head, dropout), context_dim=input_dim),
                PreNorm(latent_dim, FeedForward(latent_dim, dropout=dropout)),
                nn.ModuleList([
                    nn.ModuleList([
                        PreNorm(latent_dim, Attention(latent_dim, None, latent_heads, dim_head, dropout)),
                        PreNorm(latent_dim, FeedForward(latent_dim, dropout=dropout)),
                    ]) for _ in range(self_per_cross)
                ]),
            ])

        self.layers = nn.ModuleList([])
        for i in range(depth):
            self.layers.append(self.layers[1] if weight_tie_layers and i > 1 else make_round())
        self.to_logits = nn.Sequential(nn.LayerNorm(latent_dim), nn.Linear(latent_dim, num_classes))

    def forward(self, data, mask=None):
        b, n, _ = data.shape
        pos = torch.linspace(-1., 1., n, device=data.device, dtype=data.dtype)
        pos = repeat(fourier_encode(pos, self.max_freq, self.num_freq_bands), 'n d -> b n d', b=b)
        context = torch.cat((data, pos), dim=-1)

        x = repeat(self.latents, 'n d -> b n d', b=b)
        for cross_attn, cross_ff, self_attns in self.layers:
            x = cross_attn(x, context=context, mask=mask) + x
            x = cross_ff(x) + x
            for self_attn, self_ff in self_attns:
                x = self_attn(x) + x
                x = self_ff(x) + x
        return self.to_logits(x.mean(dim=1))
