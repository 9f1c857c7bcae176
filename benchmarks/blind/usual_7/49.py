import math

import torch
import torch.nn as nn


class HeadRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def lambda_init_fn(depth):
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class MultiheadDiffAttn(nn.Module):
    """
    Differential attention (Ye et al., 2024): the difference of two softmax maps. Rows sum to 1 - lambda and weights
    may be negative; the per-head norm and the fixed factor (1 - lambda_init) put the magnitude right again.
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

    def forward(self, x, attn_mask=None):
        """attn_mask: additive, broadcastable to (T, T); causal if left out."""
        bsz, tgt_len, embed_dim = x.size()
        q = self.q_proj(x).view(bsz, tgt_len, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, tgt_len, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, tgt_len, self.num_heads, 2 * self.head_dim).transpose(1, 2)

        attn = torch.matmul(q * self.scaling, k.transpose(-1, -2))
        if attn_mask is None:
            attn_mask = torch.full((tgt_len, tgt_len), float("-inf"), device=x.device).triu(1).type_as(attn)
        attn = torch.softmax(attn + attn_mask, dim=-1, dtype=torch.float32).type_as(attn)

        lambda_1 = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1))
        lambda_2 = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2))
        lambda_full = lambda_1 - lambda_2 + self.lambda_init
        attn = attn.view(bsz, self.num_heads, 2, tgt_len, tgt_len)
        attn = attn[:, :, 0] - lambda_full * attn[:, :, 1]

        out = self.subln(torch.matmul(attn, v)) * (1 - self.lambda_init)
        return self.out_proj(out.transpose(1, 2).reshape(bsz, tgt_len, embed_dim))
