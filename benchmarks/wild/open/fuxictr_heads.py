"""Heads are split by a bare view to (batch * heads, -1, dim), which mixes positions into heads.

reczoo/FuxiCTR #30 (2022)
https://github.com/reczoo/FuxiCTR/issues/30
"""
import torch
import torch.nn as nn


def _build(rev):
    class MultiHeadSelfAttention(nn.Module):
        """Self-attention over feature fields, forward(X), X (B, F, input_dim); no mask, no positions."""

        def __init__(self, input_dim=32, attention_dim=8, num_heads=4, use_residual=True, layer_norm=True):
            super().__init__()
            self.num_heads, self.attention_dim = num_heads, attention_dim
            self.scale = attention_dim ** 0.5
            self.W_q = nn.Linear(input_dim, num_heads * attention_dim, bias=False)
            self.W_k = nn.Linear(input_dim, num_heads * attention_dim, bias=False)
            self.W_v = nn.Linear(input_dim, num_heads * attention_dim, bias=False)
            self.W_res = nn.Linear(input_dim, num_heads * attention_dim, bias=False) if use_residual else None
            self.layer_norm = nn.LayerNorm(num_heads * attention_dim) if layer_norm else None

        def _split(self, t):
            b = t.size(0)
            if rev == 1:
                return t.view(b * self.num_heads, -1, self.attention_dim)
            return t.view(b, -1, self.num_heads, self.attention_dim).transpose(1, 2)

        def _merge(self, t, b):
            if rev == 1:
                return t.view(b, -1, self.num_heads * self.attention_dim)
            return t.transpose(1, 2).reshape(b, -1, self.num_heads * self.attention_dim)

        def forward(self, X):
            b = X.size(0)
            query, key, value = self._split(self.W_q(X)), self._split(self.W_k(X)), self._split(self.W_v(X))
            attention = (query @ key.transpose(-2, -1) / self.scale).softmax(dim=-1)
            output = self._merge(attention @ value, b)
            if self.W_res is not None:
                output = output + self.W_res(X)
            if self.layer_norm is not None:
                output = self.layer_norm(output)
            return output.relu()

    torch.manual_seed(0)
    return MultiHeadSelfAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
