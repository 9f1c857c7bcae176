"""The values go through the key projection; the value projection is never used and gets no gradient.

yflyzhang/AnnotatedTransformer #1 (2025)
https://github.com/yflyzhang/AnnotatedTransformer/issues/1
"""
import math
import torch
import torch.nn as nn


def _build(rev):
    def attention(query, key, value, mask=None, dropout=None):
        d_k = query.size(-1)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        p_attn = scores.softmax(dim=-1)
        if dropout is not None:
            p_attn = dropout(p_attn)
        return torch.matmul(p_attn, value), p_attn

    class MultiHeadedAttention(nn.Module):
        """forward(query, key, value, mask=None): mask (B, 1 or T, S), 0 where attention is not allowed."""

        def __init__(self, h=4, d_model=32, dropout=0.1):
            super().__init__()
            self.d_k, self.h = d_model // h, h
            self.q_proj = nn.Linear(d_model, d_model)
            self.k_proj = nn.Linear(d_model, d_model)
            self.v_proj = nn.Linear(d_model, d_model)
            self.o_proj = nn.Linear(d_model, d_model)
            self.attn = None
            self.dropout = nn.Dropout(p=dropout)

        def forward(self, query, key, value, mask=None):
            if mask is not None:
                mask = mask.unsqueeze(1)
            nbatches = query.size(0)
            query = self.q_proj(query).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            key = self.k_proj(key).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            proj = self.k_proj if rev == 1 else self.v_proj
            value = proj(value).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
            x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
            return self.o_proj(x)

    torch.manual_seed(0)
    return MultiHeadedAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
