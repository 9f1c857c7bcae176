"""Heads are split with view(batch * heads, -1, head_dim) and no transpose, so fields and heads are mixed.

reczoo/FuxiCTR #30 (2022)
https://github.com/reczoo/FuxiCTR/issues/30
"""
import torch
from torch import nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout_rate=0.):
        super().__init__()
        self.dropout = nn.Dropout(dropout_rate) if dropout_rate > 0 else None

    def forward(self, Q, K, V, scale=None):
        # Q, K, V: batch_dims x seq_len x attention_dim
        scores = torch.matmul(Q, K.transpose(-1, -2))
        if scale:
            scores = scores / scale
        attention = scores.softmax(dim=-1)
        if self.dropout is not None:
            attention = self.dropout(attention)
        return torch.matmul(attention, V), attention


class _MultiHeadSelfAttentionBase(nn.Module):
    """ Multi-head attention module over feature fields, X: batch x num_fields x input_dim """

    def __init__(self, input_dim, attention_dim=None, num_heads=1, dropout_rate=0., use_residual=True, use_scale=True):
        super().__init__()
        self.head_dim = attention_dim // num_heads
        self.num_heads = num_heads
        self.attention_dim = attention_dim
        self.use_residual = use_residual
        self.scale = self.head_dim ** 0.5 if use_scale else None
        self.W_q = nn.Linear(input_dim, attention_dim, bias=False)
        self.W_k = nn.Linear(input_dim, attention_dim, bias=False)
        self.W_v = nn.Linear(input_dim, attention_dim, bias=False)
        self.W_res = nn.Linear(input_dim, attention_dim, bias=False)
        self.dot_attention = ScaledDotProductAttention(dropout_rate)


def broken() -> nn.Module:
    class MultiHeadSelfAttention(_MultiHeadSelfAttentionBase):
        def forward(self, X):
            residual = X

            # linear projection
            query = self.W_q(X)
            key = self.W_k(X)
            value = self.W_v(X)

            # split by heads
            batch_size = query.size(0)
            query = query.view(batch_size * self.num_heads, -1, self.head_dim)
            key = key.view(batch_size * self.num_heads, -1, self.head_dim)
            value = value.view(batch_size * self.num_heads, -1, self.head_dim)

            # scaled dot product attention
            output, attention = self.dot_attention(query, key, value, scale=self.scale)
            # concat heads
            output = output.view(batch_size, -1, self.attention_dim)
            if self.use_residual:
                output = output + self.W_res(residual)
            return output.relu()

    torch.manual_seed(0)
    return MultiHeadSelfAttention(16, attention_dim=32, num_heads=4)


def fixed() -> nn.Module:
    class MultiHeadSelfAttention(_MultiHeadSelfAttentionBase):
        def forward(self, X):
            residual = X

            # linear projection
            query = self.W_q(X)
            key = self.W_k(X)
            value = self.W_v(X)

            # split by heads
            batch_size = query.size(0)
            query = query.view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)
            key = key.view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)
            value = value.view(batch_size, -1, self.num_heads, self.head_dim).transpose(1, 2)

            # scaled dot product attention
            output, attention = self.dot_attention(query, key, value, scale=self.scale)
            # concat heads
            output = output.transpose(1, 2).contiguous().view(batch_size, -1, self.attention_dim)
            if self.use_residual:
                output = output + self.W_res(residual)
            return output.relu()

    torch.manual_seed(0)
    return MultiHeadSelfAttention(16, attention_dim=32, num_heads=4)
