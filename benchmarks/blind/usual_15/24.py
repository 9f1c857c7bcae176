import math

import torch
from torch import nn


class SigmoidAttention(nn.Module):
    """Every weight is decided alone: sigmoid(q.k / sqrt(d) + b).

    With b = -log(number of visible keys) the weights of a row add up to about one
    at initialisation. Causal; the number of visible keys at position i is i + 1.
    Rows are not normalised.
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        s = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(self.head_dim)
        count = torch.arange(1, t + 1, device=x.device, dtype=x.dtype).view(t, 1)
        w = torch.sigmoid(s - count.log())
        w = w * torch.tril(torch.ones(t, t, device=x.device, dtype=x.dtype))
        y = torch.einsum("bhij,bhjd->bihd", w, v).reshape(b, t, c)
        return self.proj(self.norm(y))
