import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def lambda_init_fn(depth: int) -> float:
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class DifferentialAttention(nn.Module):
    """Differential Transformer attention (Ye et al., 2024), causal.

    Two softmax maps are computed per head and subtracted, which cancels common-mode noise. The maps
    share one value of twice the width. The rows of the difference sum to ``1 - lambda``, not to one; the
    following per-head norm takes care of the scale.

    Args:
        num_heads: number of differential heads; there are twice as many query/key heads.
        depth: index of the layer, from 0.
    """

    def __init__(self, dim: int = 256, num_heads: int = 4, depth: int = 0):
        super().__init__()
        assert dim % (2 * num_heads) == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads // 2
        self.scaling = self.head_dim ** -0.5
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

        self.lambda_init = lambda_init_fn(depth)
        self.lambda_q1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_q2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.subln_weight = nn.Parameter(torch.ones(2 * self.head_dim))

    def _lambda(self) -> torch.Tensor:
        first = torch.exp((self.lambda_q1 * self.lambda_k1).sum())
        second = torch.exp((self.lambda_q2 * self.lambda_k2).sum())
        return first - second + self.lambda_init

    def _subln(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(dim=-1, keepdim=True) + 1e-5)
        return y.type_as(x) * self.subln_weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, D = x.shape
        # (B, differential head, which of the two maps, T, head_dim)
        q = self.q_proj(x).view(B, T, self.num_heads, 2, self.head_dim).permute(0, 2, 3, 1, 4)
        k = self.k_proj(x).view(B, T, self.num_heads, 2, self.head_dim).permute(0, 2, 3, 1, 4)
        v = self.v_proj(x).view(B, T, self.num_heads, 2 * self.head_dim).transpose(1, 2)

        scores = torch.matmul(q * self.scaling, k.transpose(-1, -2))
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(diagonal=1)
        scores = scores.masked_fill(future, float("-inf"))
        maps = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(x)

        diff = maps[:, :, 0] - self._lambda().type_as(x) * maps[:, :, 1]
        out = self._subln(torch.matmul(diff, v))
        out = out * (1.0 - self.lambda_init)
        return self.out_proj(out.transpose(1, 2).reshape(B, T, D))
