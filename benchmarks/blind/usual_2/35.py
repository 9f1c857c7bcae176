import torch
from einops import rearrange, repeat
from torch import einsum, nn


class PerceiverAttention(nn.Module):
    def __init__(self, query_dim, context_dim, heads, dim_head):
        super().__init__()
        inner_dim = heads * dim_head
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.norm = nn.LayerNorm(query_dim)
        self.norm_context = nn.LayerNorm(context_dim)
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context=None, mask=None):
        x = self.norm(x)
        context = x if context is None else self.norm_context(context)
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=self.heads) for t in (q, k, v))

        sim = einsum("b i d, b j d -> b i j", q, k) * self.scale
        if mask is not None:
            mask = repeat(mask, "b j -> (b h) 1 j", h=self.heads)
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = einsum("b i j, b j d -> b i d", attn, v)
        return self.to_out(rearrange(out, "(b h) n d -> b n (h d)", h=self.heads))


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim * mult), nn.GELU(), nn.Linear(dim * mult, dim))

    def forward(self, x):
        return self.net(x)


class PerceiverEncoder(nn.Module):
    """Reads an input of any length into num_latents vectors.

    The cross-attention is one module that is applied `depth` times (weights shared over depth, as in
    the Perceiver paper); between the reads the latents attend to each other.

    data: (batch, n, input_dim), mask: bool (batch, n), True for valid inputs.
    """

    def __init__(self, input_dim=32, latent_dim=64, num_latents=16, depth=2, heads=4, dim_head=16):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, latent_dim) * 0.02)
        self.depth = depth
        self.cross_attn = PerceiverAttention(latent_dim, input_dim, heads, dim_head)
        self.cross_ff = FeedForward(latent_dim)
        self.self_attns = nn.ModuleList(
            [PerceiverAttention(latent_dim, latent_dim, heads, dim_head) for _ in range(depth)]
        )
        self.self_ffs = nn.ModuleList([FeedForward(latent_dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(latent_dim)

    def forward(self, data, mask=None):
        x = repeat(self.latents, "n d -> b n d", b=data.shape[0])
        for self_attn, self_ff in zip(self.self_attns, self.self_ffs):
            x = x + self.cross_attn(x, context=data, mask=mask)
            x = x + self.cross_ff(x)
            x = x + self_attn(x)
            x = x + self_ff(x)
        return self.norm(x)
