import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """Multi-head attention as described in "Attention Is All You Need".

    Args:
        embed_size: model width.
        heads: number of attention heads.
        dropout: dropout applied to the attention weights.
    """

    def __init__(self, embed_size=64, heads=4, dropout=0.0):
        super().__init__()
        assert embed_size % heads == 0, "embed_size must be divisible by heads"
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads

        self.to_q = nn.Linear(embed_size, embed_size)
        self.to_k = nn.Linear(embed_size, embed_size)
        self.to_v = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)
        self.dropout = nn.Dropout(dropout)

    def split_heads(self, x):
        n, length, _ = x.shape
        return x.view(n, length, self.heads, self.head_dim).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        """
        query: (N, Lq, E), key/value: (N, Lk, E)
        mask:  broadcastable to (N, heads, Lq, Lk); 0 where attention is not allowed
        """
        n, q_len, _ = query.shape

        q = self.split_heads(self.to_q(query))
        k = self.split_heads(self.to_k(key))
        v = self.split_heads(self.to_v(value))

        energy = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e9"))

        attention = torch.softmax(energy, dim=-1)
        attention = self.dropout(attention)

        out = torch.matmul(attention, v)
        out = out.contiguous().view(n, q_len, self.embed_size)
        return self.fc_out(out)
