import torch
import torch.nn as nn
import torch.nn.functional as F


class QKNormAttention(nn.Module):
    """Causal attention with L2-normalised queries and keys and a learned scale (Henry et al., 2020)."""

    def __init__(self, dim: int = 64, n_heads: int = 4, init_scale: float = 10.0):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.g = nn.Parameter(torch.full((1, n_heads, 1, 1), init_scale))

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, self.head_dim)
        k = self.wk(x).view(b, t, self.n_heads, self.head_dim)
        v = self.wv(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)

        q = F.normalize(q, p=2.0, dim=1).transpose(1, 2)
        k = F.normalize(k, p=2.0, dim=1).transpose(1, 2)

        out = F.scaled_dot_product_attention(q * self.g, k, v, is_causal=True, scale=1.0)
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))
