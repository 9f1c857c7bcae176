import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class QKNormCausalAttention(nn.Module):
    """Causal attention with query-key normalisation (Henry et al., 2020).

    Queries and keys are unit vectors, a learned temperature per head takes the place of 1/sqrt(d).
    """

    def __init__(self, n_embd=64, n_head=4, block_size=128, dropout=0.0):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head = n_head
        self.head_dim = n_embd // n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        g0 = math.log2(block_size ** 2 - block_size)
        self.g = nn.Parameter(torch.full((n_head, 1, 1), g0))
        self.attn_drop = nn.Dropout(dropout)
        self.resid_drop = nn.Dropout(dropout)
        self.register_buffer(
            "causal", torch.ones(block_size, block_size, dtype=torch.bool).tril(), persistent=False
        )

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_head, self.head_dim).permute(2, 0, 3, 1, 4)
        q = F.normalize(q, p=2, dim=2)
        k = F.normalize(k, p=2, dim=2)
        att = self.g * (q @ k.transpose(-2, -1))
        att = att.masked_fill(~self.causal[:T, :T], float("-inf"))
        att = self.attn_drop(att.softmax(dim=-1))
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.resid_drop(self.proj(y))
