import math

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class DifferentialAttention(nn.Module):
    """Differential attention (Ye et al., 2024), causal.

    Every head has two query/key pairs of half width and one value; the second softmax map
    is subtracted from the first with a learned factor lambda, so that weights can be
    negative and rows sum to 1 - lambda. The head outputs are normalised one by one and
    multiplied by 1 - lambda_init.

    Args:
        dim: model width
        num_heads: number of (double) heads
        depth: index of the layer, sets lambda_init
    """

    def __init__(self, dim=64, num_heads=2, depth=0):
        super().__init__()
        assert dim % (2 * num_heads) == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads // 2
        self.scaling = self.head_dim ** -0.5
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.randn(self.head_dim) * 0.1))
        self.subln = RMSNorm(2 * self.head_dim)

    def forward(self, x):
        b, n, d = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, 2, self.head_dim).permute(3, 0, 2, 1, 4)
        k = self.k_proj(x).view(b, n, self.num_heads, 2, self.head_dim).permute(3, 0, 2, 1, 4)
        v = self.v_proj(x).view(b, n, self.num_heads, 2 * self.head_dim).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.scaling      # 2, b, h, n, n
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        maps = scores.masked_fill(future, float("-inf")).softmax(dim=-1)

        lam = (
            torch.exp((self.lambda_q1 * self.lambda_k1).sum())
            - torch.exp((self.lambda_q2 * self.lambda_k2).sum())
            + self.lambda_init
        )
        out = torch.matmul(maps[0] - lam * maps[1], v)
        out = self.subln(out) * (1 - self.lambda_init)
        return self.out_proj(out.transpose(1, 2).reshape(b, n, d))
