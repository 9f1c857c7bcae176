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


def lambda_init_fn(depth):
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class MultiheadDiffAttn(nn.Module):
    """Differential attention: two softmax maps per head, the second one subtracted with weight lambda.

    Every head has two query/key groups of width ``head_dim`` and one value of width ``2 * head_dim``.
    The output of each head is normalised on its own and multiplied by ``1 - lambda_init``, which keeps
    the size of the gradients close to that of an ordinary transformer.
    """

    def __init__(self, embed_dim=64, num_heads=2, depth=1):
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
        self.subln = RMSNorm(2 * self.head_dim)

    def forward(self, x):
        bsz, n, _ = x.shape
        q = self.q_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, n, self.num_heads, 2 * self.head_dim).transpose(1, 2)

        w = (q * self.scaling) @ k.transpose(-1, -2)
        w = w + torch.full((n, n), float("-inf"), device=x.device, dtype=w.dtype).triu(1)
        w = w.softmax(dim=-1).view(bsz, self.num_heads, 2, n, n)

        l1 = torch.exp((self.lambda_q1 * self.lambda_k1).sum())
        l2 = torch.exp((self.lambda_q2 * self.lambda_k2).sum())
        lam = l1 - l2 + self.lambda_init
        w = w[:, :, 0] - lam * w[:, :, 1]

        o = self.subln(w @ v) * (1 - self.lambda_init)
        return self.out_proj(o.transpose(1, 2).reshape(bsz, n, -1))
