import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def lambda_init_fn(depth):
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class MultiheadDiffAttn(nn.Module):
    """Differential attention (Ye et al., 2024).

    Each head takes the difference of two softmax maps over half-size queries and keys; weights may be
    negative and rows sum to 1 - lambda. The head outputs go through an RMS norm without mixing and are
    multiplied by 1 - lambda_init.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 2, depth: int = 0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads // 2
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.lambda_init = lambda_init_fn(depth)
        self.lambda_q1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_q2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.norm_weight = nn.Parameter(torch.ones(2 * self.head_dim))

    def forward(self, x):
        bsz, n, c = x.shape
        q = self.q_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2) * self.scaling
        k = self.k_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, n, self.num_heads, 2 * self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-1, -2)
        scores = scores + torch.full((n, n), float("-inf"), device=x.device, dtype=scores.dtype).triu(1)
        probs = F.softmax(scores.float(), dim=-1).type_as(scores)

        l1 = torch.exp((self.lambda_q1 * self.lambda_k1).sum())
        l2 = torch.exp((self.lambda_q2 * self.lambda_k2).sum())
        lam = l1 - l2 + self.lambda_init
        probs = probs.view(bsz, self.num_heads, 2, n, n)
        probs = probs[:, :, 0] - lam * probs[:, :, 1]

        out = probs @ v
        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm_weight
        out = out * (1 - self.lambda_init)
        return self.out_proj(out.transpose(1, 2).reshape(bsz, n, c))
