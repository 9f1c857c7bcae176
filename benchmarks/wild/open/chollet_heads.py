"""The attention weights are applied to the keys instead of the values.

fchollet/deep-learning-with-python-notebooks #261 (2025)
https://github.com/fchollet/deep-learning-with-python-notebooks/issues/261
"""
import math
import torch
import torch.nn as nn


def _build(rev):
    class MultiHeadAttention(nn.Module):
        """One small dense layer per head; forward(query, key, value), each (B, T, dim), no mask."""

        def __init__(self, dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, dim // num_heads
            self.query_dense = nn.ModuleList(nn.Linear(dim, self.head_dim) for _ in range(num_heads))
            self.key_dense = nn.ModuleList(nn.Linear(dim, self.head_dim) for _ in range(num_heads))
            self.value_dense = nn.ModuleList(nn.Linear(dim, self.head_dim) for _ in range(num_heads))
            self.output_dense = nn.Linear(self.head_dim * num_heads, dim)

        def forward(self, query, key, value):
            head_outputs = []
            for i in range(self.num_heads):
                q = self.query_dense[i](query)
                k = self.key_dense[i](key)
                v = self.value_dense[i](value)
                scores = torch.einsum("btd,bsd->bts", q, k)
                scores = torch.softmax(scores / math.sqrt(self.head_dim), dim=-1)
                head_outputs.append(torch.einsum("bts,bsd->btd", scores, k if rev == 1 else v))
            return self.output_dense(torch.cat(head_outputs, dim=-1))

    torch.manual_seed(0)
    return MultiHeadAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
