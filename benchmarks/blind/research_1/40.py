import torch
import torch.nn.functional as F
from einops import rearrange
from torch import einsum, nn


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.g * self.scale


class LinearAttention(nn.Module):
    """
    Efficient attention (https://arxiv.org/abs/1812.01243) for U-Net feature maps (b, c, h, w).

    The keys are normalised over the positions and the queries over the channels, so the weights
    softmax(q) softmax(k)^T are a proper distribution and the n x n matrix is never formed.
    Learned memory key/values are put in front of the positions.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, num_mem_kv=4):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        hidden_dim = dim_head * heads

        self.norm = RMSNorm(dim)
        self.mem_kv = nn.Parameter(torch.randn(2, heads, dim_head, num_mem_kv))
        self.to_qkv = nn.Conv2d(dim, hidden_dim * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(hidden_dim, dim, 1), RMSNorm(dim))

    def forward(self, x):
        b, c, h, w = x.shape

        residual = x
        x = self.norm(x)

        qkv = self.to_qkv(x).chunk(3, dim=1)
        q, k, v = map(lambda t: rearrange(t, 'b (h c) x y -> b h c (x y)', h=self.heads), qkv)

        mk, mv = (t.unsqueeze(0).expand(b, -1, -1, -1) for t in self.mem_kv)
        k, v = torch.cat((mk, k), dim=-1), torch.cat((mv, v), dim=-1)

        q = q.softmax(dim=-2)
        k = k.softmax(dim=-1)

        q = q * self.scale

        context = einsum('b h d n, b h e n -> b h d e', k, v)
        out = einsum('b h d e, b h d n -> b h e n', context, q)
        out = rearrange(out, 'b h c (x y) -> b (h c) x y', h=self.heads, x=h, y=w)
        return self.to_out(out) + residual
