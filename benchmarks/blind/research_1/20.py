import torch
from torch import nn, einsum
from einops import rearrange


class AdapterCrossAttention(nn.Module):
    """
    Cross attention of a latent-diffusion U-Net on text tokens, with a decoupled branch for
    image prompt tokens (IP-Adapter).

    x: (b, n, query_dim) flattened feature map
    context: (b, m, context_dim) text tokens
    image_context: (b, l, context_dim) image prompt tokens
    """

    def __init__(self, query_dim=64, context_dim=48, heads=4, dim_head=16, ip_scale=1.0, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.ip_scale = ip_scale

        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_k_ip = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v_ip = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def forward(self, x, context, image_context=None):
        h = self.heads

        q = self.to_q(x)
        k = self.to_k(context)
        v = self.to_v(context)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> (b h) n d', h=h), (q, k, v))

        sim = einsum('b i d, b j d -> b i j', q, k) * self.scale
        attn = sim.softmax(dim=-1)
        out = einsum('b i j, b j d -> b i d', attn, v)

        if image_context is not None:
            k_ip = self.to_k_ip(image_context)
            v_ip = self.to_v_ip(image_context)
            k_ip, v_ip = map(lambda t: rearrange(t, 'b n (h d) -> (b h) n d', h=h), (k_ip, v_ip))

            sim_ip = einsum('b i d, b j d -> b i j', q, k_ip) * self.scale
            attn_ip = sim_ip.softmax(dim=1)
            out = out + self.ip_scale * einsum('b i j, b j d -> b i d', attn_ip, v_ip)

        out = rearrange(out, '(b h) n d -> b n (h d)', h=h)
        return self.to_out(out)
