"""The softmax runs over dimension 1, which with a batch is the queries instead of the keys.

datawhalechina/llms-from-scratch-cn #54 (2025)
https://github.com/datawhalechina/llms-from-scratch-cn/issues/54
"""
import torch
import torch.nn as nn


def _build(rev):
    class CausalAttention(nn.Module):
        def __init__(self, d_in, d_out, block_size, dropout, qkv_bias=False):
            super().__init__()
            self.d_out = d_out
            self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
            self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
            self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
            self.dropout = nn.Dropout(dropout)
            self.register_buffer('mask', torch.triu(torch.ones(block_size, block_size), diagonal=1))

        def forward(self, x):
            b, num_tokens, d_in = x.shape
            keys = self.W_key(x)
            queries = self.W_query(x)
            values = self.W_value(x)
            attn_scores = queries @ keys.transpose(1, 2)
            attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
            attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=1 if rev == 1 else -1)
            attn_weights = self.dropout(attn_weights)
            return attn_weights @ values

    class MultiHeadAttentionWrapper(nn.Module):
        """Causal heads side by side, forward(x), x (batch, tokens, d_in)."""

        def __init__(self, d_in=32, d_out=8, block_size=16, dropout=0.0, num_heads=4):
            super().__init__()
            self.heads = nn.ModuleList([CausalAttention(d_in, d_out, block_size, dropout) for _ in range(num_heads)])
            self.out_proj = nn.Linear(d_out * num_heads, d_out * num_heads)

        def forward(self, x):
            return self.out_proj(torch.cat([head(x) for head in self.heads], dim=-1))

    torch.manual_seed(0)
    return MultiHeadAttentionWrapper()


def broken():
    return _build(1)


def fixed():
    return _build(2)
