import math

import torch
import torch.nn as nn


class HeadRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class DifferentialAttention(nn.Module):
    """Differential attention (Ye et al., 2024).

    Each head subtracts ``lambda`` times a second attention map from a first one, so weights can be negative and a
    row sums to ``1 - lambda``. The head output is normalised and multiplied by the constant ``1 - lambda_init``,
    as in the paper. Query and key heads come in pairs of half size; values have twice that size.

    Args:
        dim: model width.
        num_heads: number of differential heads.
        layer_idx: depth of the layer, counted from 0.
    """

    def __init__(self, dim: int = 128, num_heads: int = 2, layer_idx: int = 0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads // 2
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer_idx)
        self.lambda_q1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_q2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.subln = HeadRMSNorm(2 * self.head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, dim = x.shape
        q = self.q_proj(x).view(b, t, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_heads, 2 * self.head_dim).transpose(1, 2)

        scores = (q * self.head_dim**-0.5) @ k.transpose(-1, -2)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        maps = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        maps = maps.view(b, self.num_heads, 2, t, t)

        lam = (
            torch.exp(torch.dot(self.lambda_q1, self.lambda_k1))
            - torch.exp(torch.dot(self.lambda_q2, self.lambda_k2))
            + self.lambda_init
        )
        attn = maps[:, :, 0] - lam * maps[:, :, 1]
        y = self.subln(attn @ v) * (1 - self.lambda_init)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, dim))
