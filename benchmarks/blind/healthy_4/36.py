import torch
from torch import nn, einsum
from einops import rearrange, repeat
from einops.layers.torch import Rearrange


def exists(val):
    return val is not None


def FeedForward(dim, mult = 4):
    inner_dim = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner_dim, bias = False),
        nn.GELU(),
        nn.Linear(inner_dim, dim, bias = False)
    )


class PerceiverAttention(nn.Module):
    def __init__(self, *, dim, dim_head = 64, heads = 8):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads

        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)

        self.to_q = nn.Linear(dim, inner_dim, bias = False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias = False)
        self.to_out = nn.Linear(inner_dim, dim, bias = False)

    def forward(self, x, latents, mask = None):
        """
        einstein notation
        b - batch
        n - sequence of media tokens
        m - latents
        d - dimension

        mask - (b, n), True for media tokens that exist
        """
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        h = self.heads

        q = self.to_q(latents)

        # the paper differs from Perceiver in which they also concat the key / values derived from the latents to be attended to
        kv_input = torch.cat((x, latents), dim = -2)
        k, v = self.to_kv(kv_input).chunk(2, dim = -1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h = h) for t in (q, k, v))
        q = q * self.scale

        sim = einsum('b h i d, b h j d -> b h i j', q, k)

        if exists(mask):
            latent_mask = mask.new_ones((mask.shape[0], latents.shape[-2]))
            mask = torch.cat((mask, latent_mask), dim = -1)
            sim = sim.masked_fill(~rearrange(mask, 'b j -> b 1 1 j'), -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim = -1, keepdim = True).detach()
        attn = sim.softmax(dim = -1)

        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        out = rearrange(out, 'b h n d -> b n (h d)')
        return self.to_out(out)


class PerceiverResampler(nn.Module):
    """Resamples any number of media tokens to ``num_latents`` tokens (Flamingo).

    x: (b, n, dim) or (b, t, n, dim) with up to ``num_media_embeds`` time steps; the result is (b, num_latents, dim).
    mask: bool of x's shape without the last axis, True for tokens that exist.
    """

    def __init__(
        self,
        *,
        dim = 256,
        depth = 2,
        dim_head = 32,
        heads = 8,
        num_latents = 16,
        num_media_embeds = 4,
        ff_mult = 4
    ):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.media_pos_emb = nn.Parameter(torch.randn(num_media_embeds, 1, dim))
        self.flatten_time = Rearrange('b t n d -> b (t n) d')

        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(nn.ModuleList([
                PerceiverAttention(dim = dim, dim_head = dim_head, heads = heads),
                FeedForward(dim = dim, mult = ff_mult)
            ]))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask = None):
        if x.ndim == 3:
            x = rearrange(x, 'b n d -> b 1 n d')
            if exists(mask):
                mask = rearrange(mask, 'b n -> b 1 n')

        times = x.shape[1]
        assert times <= self.media_pos_emb.shape[0], 'too many time steps'
        x = self.flatten_time(x + self.media_pos_emb[:times])
        if exists(mask):
            mask = rearrange(mask, 'b t n -> b (t n)')

        latents = repeat(self.latents, 'm d -> b m d', b = x.shape[0])
        for attn, ff in self.layers:
            latents = attn(x, latents, mask = mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
