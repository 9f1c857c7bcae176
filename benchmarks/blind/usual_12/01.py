import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """Multi-head attention as in "Attention Is All You Need".

    Args:
        d_model: size of the token vectors.
        num_heads: number of parallel heads; must divide ``d_model``.
        dropout: dropout on the attention weights.
    """

    def __init__(self, d_model: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        if d_model % num_heads != 0:
            raise ValueError("d_model must be divisible by num_heads")
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads

        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def split_heads(self, x):
        b, t, _ = x.shape
        return x.view(b, t, self.num_heads, self.d_k).transpose(1, 2)

    def combine_heads(self, x):
        b, h, t, d = x.shape
        return x.contiguous().view(b, t, h * d)

    def forward(self, query, key, value, mask=None):
        """query/key/value: (batch, seq, d_model); mask: 1 where attention is allowed."""
        q = self.split_heads(self.W_q(query))
        k = self.split_heads(self.W_k(key))
        v = self.split_heads(self.W_v(value))

        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        probs = self.dropout(torch.softmax(scores, dim=-1))
        context = torch.matmul(probs, v)
        return self.W_o(self.combine_heads(context))
