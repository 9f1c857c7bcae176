import math

import torch
import torch.nn.functional as F
from torch import nn


def lambda_init_fn(depth):
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class HeadRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class MultiheadDiffAttn(nn.Module):
    """Differential attention ("Differential Transformer", Ye et al., 2024).

    Every head has two softmax maps and uses map1 - lambda * map2, so weights can be negative
    and a row sums to 1 - lambda. Each head is normalised on its own and multiplied with the
    constant (1 - lambda_init), which keeps the gradients at the size of plain attention.
    """

    def __init__(self, embed_dim=64, num_heads=2, depth=0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads // 2
        self.scaling = self.head_dim ** -0.5

        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

        self.lambda_init = lambda_init_fn(depth)
        self.lambda_q1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_q2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)

        self.subln = HeadRMSNorm(2 * self.head_dim)

    def forward(self, x):
        bsz, n, embed_dim = x.shape
        q = self.q_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, n, self.num_heads, 2 * self.head_dim).transpose(1, 2)

        scores = torch.matmul(q * self.scaling, k.transpose(-1, -2))
        scores = scores + torch.triu(scores.new_full((n, n), float("-inf")), diagonal=1)
        maps = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(scores)
        maps = maps.view(bsz, self.num_heads, 2, n, n)

        lambda_1 = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1))
        lambda_2 = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2))
        lambda_full = lambda_1 - lambda_2 + self.lambda_init

        weights = maps[:, :, 0] - lambda_full * maps[:, :, 1]
        out = self.subln(torch.matmul(weights, v)) * (1 - self.lambda_init)
        return self.out_proj(out.transpose(1, 2).reshape(bsz, n, embed_dim))
