import torch
import torch.nn.functional as F
from torch import nn


class ChannelNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.g * (x.shape[1] ** 0.5)


class LinearAttention(nn.Module):
    """Linear-cost attention for the high resolution stages of a diffusion U-Net.

    Queries are normalised over the features and keys over the pixels, which replaces the softmax of the
    full attention map ("Efficient attention", Shen et al.). Input and output are ``[B, C, H, W]``.
    """

    def __init__(self, dim=32, heads=4, dim_head=16):
        super().__init__()
        self.heads = heads
        self.dim_head = dim_head
        self.scale = dim_head ** -0.5
        hidden = heads * dim_head
        self.norm = ChannelNorm(dim)
        self.to_qkv = nn.Conv2d(dim, hidden * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(hidden, dim, 1), ChannelNorm(dim))

    def forward(self, x):
        b, _, h, w = x.shape
        q, k, v = (
            t.reshape(b, self.heads, self.dim_head, h * w) for t in self.to_qkv(self.norm(x)).chunk(3, dim=1)
        )
        q = q.softmax(dim=-2) * self.scale
        k = k.softmax(dim=-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        out = torch.einsum("bhde,bhdn->bhen", context, q)
        return x + self.to_out(out.reshape(b, -1, h, w))
