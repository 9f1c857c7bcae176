import math

import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    """
    Multi-head self attention.

    Args:
        x: [batch, seq_len, dim]
        attention_mask: [batch, seq_len], 1 for real tokens and 0 for padding tokens
            (as returned by the tokenizer)
    Returns:
        [batch, seq_len, dim]
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_lin = nn.Linear(dim, dim)
        self.k_lin = nn.Linear(dim, dim)
        self.v_lin = nn.Linear(dim, dim)
        self.out_lin = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        bs, length, _ = t.shape
        return t.view(bs, length, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, attention_mask=None):
        bs, length, dim = x.shape
        q = self._heads(self.q_lin(x)) / math.sqrt(self.head_dim)
        k = self._heads(self.k_lin(x))
        v = self._heads(self.v_lin(x))

        scores = torch.matmul(q, k.transpose(2, 3))
        if attention_mask is not None:
            mask = attention_mask.view(bs, 1, 1, length).expand_as(scores)
            scores = scores.masked_fill(mask.bool(), -1e9)

        weights = self.dropout(nn.functional.softmax(scores, dim=-1))
        context = torch.matmul(weights, v)
        context = context.transpose(1, 2).contiguous().view(bs, length, dim)
        return self.out_lin(context)
