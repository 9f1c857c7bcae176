import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """Multi-head attention from "Attention Is All You Need".

    Args:
        d_model: width of the model
        num_heads: number of parallel heads, must divide ``d_model``
        dropout: dropout on the attention probabilities
    """

    def __init__(self, d_model=512, num_heads=8, dropout=0.1):
        super().__init__()
        assert d_model % num_heads == 0, "d_model must be divisible by num_heads"
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads

        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def split_heads(self, x):
        batch, length, _ = x.size()
        return x.view(batch, length, self.num_heads, self.d_k).transpose(1, 2)

    def combine_heads(self, x):
        batch, _, length, _ = x.size()
        return x.transpose(1, 2).contiguous().view(batch, length, self.d_model)

    def scaled_dot_product(self, q, k, v, mask=None):
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        probs = self.dropout(torch.softmax(scores, dim=-1))
        return torch.matmul(probs, v)

    def forward(self, query, key, value, mask=None):
        """
        query: (batch, tgt_len, d_model)
        key, value: (batch, src_len, d_model)
        mask: broadcastable to (batch, heads, tgt_len, src_len), 0 where attention is not allowed
        """
        q = self.split_heads(self.w_q(query))
        k = self.split_heads(self.w_k(key))
        v = self.split_heads(self.w_k(value))

        out = self.scaled_dot_product(q, k, v, mask)
        return self.w_o(self.combine_heads(out))
