import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange


class CausalLinearAttention(nn.Module):
    """O(N) autoregressive attention with the feature map elu(x) + 1.

    Args:
        dim: model width
        heads: number of heads
        dim_head: width of a head
    """

    def __init__(self, dim=64, heads=4, dim_head=16, eps=1e-6, dropout=0.0):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.eps = eps
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x):
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        q = F.elu(q) + 1
        k = F.elu(k) + 1

        kv = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
        z = 1.0 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2)) + self.eps)
        out = torch.einsum("bhnd,bhnde,bhn->bhne", q, kv, z)

        out = rearrange(out, "b h n e -> b n (h e)")
        return x + self.to_out(out)
