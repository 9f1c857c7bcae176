import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class QKNormAttention(nn.Module):
    """Query-key normalisation (Henry et al., 2020).

    Queries and keys of every head are scaled to unit length, so the logits are cosine
    similarities times a learned gain ``g``.
    """

    def __init__(self, dim=64, num_heads=4, typical_length=64, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.g = nn.Parameter(torch.tensor(math.log2(typical_length ** 2 - typical_length)))
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, t):
        return t.view(t.size(0), t.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, mask=None):
        """mask: bool (B, N), True for tokens."""
        b, n, c = x.shape
        q = F.normalize(self._heads(self.q_proj(x)))
        k = F.normalize(self._heads(self.k_proj(x)))
        v = self._heads(self.v_proj(x))

        logits = self.g * (q @ k.transpose(-1, -2))
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], float("-inf"))
        attn = self.dropout(logits.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(b, n, c)
        return self.out_proj(out)
