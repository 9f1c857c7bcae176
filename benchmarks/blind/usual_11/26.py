import math

import torch
import torch.nn as nn


class PrefixLMAttention(nn.Module):
    """
    Self-attention for prefix language modelling.

    The first ``prefix_len`` tokens (the prompt) see each other in both directions, all later tokens
    are generated causally. With ``prefix_len=0`` this is ordinary causal attention.
    """

    def __init__(self, dim=64, num_heads=4, max_len=128, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("causal_mask", torch.tril(torch.ones(max_len, max_len, dtype=torch.bool)))

    def get_mask(self, seq_len, prefix_len):
        mask = self.causal_mask[:seq_len, :seq_len]
        if prefix_len > 0:
            mask[:prefix_len, :prefix_len] = True
        return mask

    def forward(self, x, prefix_len=0):
        bsz, seq_len, dim = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q = q.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        mask = self.get_mask(seq_len, prefix_len)
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = self.dropout(scores.softmax(dim=-1))
        out = (weights @ v).transpose(1, 2).contiguous().view(bsz, seq_len, dim)
        return self.to_out(out)
