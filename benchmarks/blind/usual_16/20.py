import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_len, causal=False, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.causal = causal
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        if causal:
            self.register_buffer("tril", torch.tril(torch.ones(max_len, max_len, dtype=torch.bool)), persistent=False)

    def forward(self, query, key, value, padding_mask=None):
        B = query.size(0)
        q = self.w_q(query).view(B, -1, self.num_heads, self.d_k).transpose(1, 2)
        k = self.w_k(key).view(B, -1, self.num_heads, self.d_k).transpose(1, 2)
        v = self.w_v(value).view(B, -1, self.num_heads, self.d_k).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if self.causal:
            scores = scores.masked_fill(~self.tril[: q.size(2), : k.size(2)], -1e9)
        if padding_mask is not None:
            scores = scores.masked_fill(~padding_mask[:, None, None, :], -1e9)
        attn = self.dropout(torch.softmax(scores, dim=-1))
        out = torch.matmul(attn, v).transpose(1, 2).contiguous().view(B, -1, self.num_heads * self.d_k)
        return self.w_o(out)


class DecoderLayer(nn.Module):
    """Pre-norm Transformer decoder layer.

    x: (B, T, d_model) target side, memory: (B, S, d_model) encoder output,
    tgt_mask / memory_mask: (B, T) and (B, S) bool, True at real tokens.
    """

    def __init__(self, d_model=64, num_heads=4, d_ff=256, max_len=256, dropout=0.1):
        super().__init__()
        attn_args = dict(d_model=d_model, num_heads=num_heads, max_len=max_len, causal=True, dropout=dropout)
        self.self_attn = MultiHeadAttention(**attn_args)
        self.cross_attn = MultiHeadAttention(**attn_args)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory, tgt_mask=None, memory_mask=None):
        h = self.norm1(x)
        x = x + self.dropout(self.self_attn(h, h, h, tgt_mask))
        h = self.norm2(x)
        x = x + self.dropout(self.cross_attn(h, memory, memory, memory_mask))
        return x + self.dropout(self.ffn(self.norm3(x)))
