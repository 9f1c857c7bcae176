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
    """Differential attention (https://arxiv.org/abs/2410.05258), causal.

    A head has two queries and keys of size ``embed_dim / num_heads / 2`` and one value of twice that size.
    Its map is ``softmax(q1 k1) - lambda * softmax(q2 k2)``, whose rows sum to ``1 - lambda``, not to 1.

    depth: 0-based index of the layer, only used for the start value of lambda.
    """

    def __init__(self, embed_dim=128, num_heads=4, depth=0):
        super().__init__()
        assert embed_dim % (2 * num_heads) == 0
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads // 2
        self.scaling = self.head_dim ** -0.5

        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

        self.lambda_init = lambda_init_fn(depth)
        self.lambda_q1 = nn.Parameter(torch.zeros(self.head_dim).normal_(mean=0, std=0.1))
        self.lambda_k1 = nn.Parameter(torch.zeros(self.head_dim).normal_(mean=0, std=0.1))
        self.lambda_q2 = nn.Parameter(torch.zeros(self.head_dim).normal_(mean=0, std=0.1))
        self.lambda_k2 = nn.Parameter(torch.zeros(self.head_dim).normal_(mean=0, std=0.1))
        self.subln = HeadRMSNorm(2 * self.head_dim)

    def forward(self, x, attn_mask=None):
        """attn_mask: additive (tgt_len, tgt_len), replaces the causal mask."""
        bsz, tgt_len, embed_dim = x.size()
        q = self.q_proj(x).view(bsz, tgt_len, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, tgt_len, 2 * self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, tgt_len, self.num_heads, 2 * self.head_dim).transpose(1, 2)

        scores = torch.matmul(q * self.scaling, k.transpose(-1, -2))
        if attn_mask is None:
            attn_mask = torch.full((tgt_len, tgt_len), float("-inf"), device=x.device).triu(1).type_as(scores)
        probs = F.softmax(scores + attn_mask, dim=-1, dtype=torch.float32).type_as(scores)

        lambda_1 = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1).float()).type_as(q)
        lambda_2 = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2).float()).type_as(q)
        lambda_full = lambda_1 - lambda_2 + self.lambda_init
        probs = probs.view(bsz, self.num_heads, 2, tgt_len, tgt_len)
        diff = probs[:, :, 0] - lambda_full * probs[:, :, 1]

        attn = self.subln(torch.matmul(diff, v))
        attn = attn * (1 - self.lambda_init)
        attn = attn.transpose(1, 2).reshape(bsz, tgt_len, embed_dim)
        return self.out_proj(attn)
