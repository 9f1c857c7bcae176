import math

import torch
import torch.nn as nn


class MultiHeadSelfAttention(nn.Module):
    """Plain multi-head self-attention as described in "Attention Is All You Need".

    Args:
        embed_dim: model width
        num_heads: number of attention heads, must divide embed_dim
        dropout: dropout on the attention probabilities
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        assert embed_dim % num_heads == 0
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        """
        x:    (batch, seq_len, embed_dim)
        mask: optional bool (batch, seq_len), True for real tokens
        """
        batch, seq_len, _ = x.shape

        q = self.query(x).view(batch, self.num_heads, seq_len, self.head_dim)
        k = self.key(x).view(batch, self.num_heads, seq_len, self.head_dim)
        v = self.value(x).view(batch, self.num_heads, seq_len, self.head_dim)

        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        probs = self.dropout(torch.softmax(scores, dim=-1))

        context = torch.matmul(probs, v)
        context = context.reshape(batch, seq_len, self.embed_dim)
        return self.out(context)
