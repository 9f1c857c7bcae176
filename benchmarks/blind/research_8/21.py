import torch
from torch import nn


class LinearAttention2d(nn.Module):
    """Efficient attention (Shen et al.) for the high resolution stages of a diffusion U-Net.

    Queries are normalised over the channels of the head, keys over the positions; the product k v^T is formed first,
    so the cost is linear in H * W.
    """

    def __init__(self, dim=32, heads=4, dim_head=16, groups=8):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        hidden = heads * dim_head
        self.norm = nn.GroupNorm(groups, dim)
        self.to_qkv = nn.Conv2d(dim, hidden * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(hidden, dim, 1), nn.GroupNorm(1, dim))

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (t.reshape(b, self.heads, -1, h * w) for t in self.to_qkv(self.norm(x)).chunk(3, dim=1))
        q = q.softmax(dim=-2) * self.scale
        k = k.softmax(dim=-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        out = torch.einsum("bhde,bhdn->bhen", context, q)
        return x + self.to_out(out.reshape(b, -1, h, w))
