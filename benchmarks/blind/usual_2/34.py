import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineSelfAttention(nn.Module):
    """Self-attention on unit-length queries and keys with a learned temperature per head.

    The logits are cosine similarities times exp(logit_scale), which bounds them and keeps
    training in half precision stable.
    """

    def __init__(self, dim=96, num_heads=6, max_scale=100.0):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.max_logit_scale = math.log(max_scale)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def _split(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        b, n, c = x.shape
        q = F.normalize(self._split(self.q_proj(x)))
        k = F.normalize(self._split(self.k_proj(x)))
        v = self._split(self.v_proj(x))

        scale = self.logit_scale.clamp(max=self.max_logit_scale).exp()
        attn = (q @ k.transpose(-2, -1)) * scale
        attn = attn.softmax(dim=-1)
        out = (attn @ v).transpose(1, 2).reshape(b, n, c)
        return self.out_proj(out)
