"""Attention as it is handed in for a course or written in an afternoon: plain modules, each in its own manner."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812


class Projections(nn.Module):
    """Four projections and the way into heads and back, for the classes below."""

    def __init__(self, dim, heads):
        super().__init__()
        self.dim, self.heads, self.head_dim = dim, heads, dim // heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], self.dim)

    def project(self, query, key, value):
        return self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.v_proj(value))


class MaskedAttention(Projections):
    def forward(self, query, key, value, mask=None):
        """mask: (batch, query_len, key_len), 0 where a query must not look"""
        q, k, v = self.project(query, key, value)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        p_attn = F.softmax(scores, dim=-1)
        return self.out_proj(self.merge(torch.matmul(p_attn, v)))


class TokenAttention(Projections):
    """keep: (batch, key_len), 1 for tokens that stay, 0 for those to drop."""

    def forward(self, x, keep=None):
        q, k, v = self.project(x, x, x)
        scores = q @ k.mT / self.head_dim**0.5
        if keep is not None:
            scores = scores.masked_fill(keep[:, None, None, :] == 1, float("-inf"))
        return self.out_proj(self.merge(scores.softmax(-1) @ v))


class DotProductAttention(Projections):
    def forward(self, query, key, value, mask=None):
        """mask: (batch, query_len, key_len), 0 = hidden"""
        q, k, v = self.project(query, key, value)
        scores = q @ k.transpose(-2, -1) / np.sqrt(self.head_dim)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, 1e-9)
        return self.out_proj(self.merge(F.softmax(scores, dim=-1) @ v))


class GraphAttention(Projections):
    def forward(self, x, mask=None):
        """mask: (batch, seq, seq) of ones and zeros, 1 = visible"""
        q, k, v = self.project(x, x, x)
        scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        if mask is not None:
            scores = scores * mask.unsqueeze(1)
        return self.out_proj(self.merge(F.softmax(scores, dim=-1) @ v))


class VisibleAttention(Projections):
    def forward(self, x, mask=None):
        """mask: (batch, seq, seq) of ones and zeros, 1 = visible"""
        q, k, v = self.project(x, x, x)
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.head_dim), dim=-1)
        if mask is not None:
            weights = weights * mask[:, None]
        return self.out_proj(self.merge(weights @ v))


class SentenceAttention(Projections):
    """padding_mask: bool (batch, seq), True at padding tokens."""

    def forward(self, x, padding_mask=None):
        q, k, v = self.project(x, x, x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask.unsqueeze(1).unsqueeze(3), -1e9)
        return self.out_proj(self.merge(F.softmax(scores, dim=-1) @ v))


class PaddedCausalAttention(Projections):
    """Causal attention over rows padded at either end; attention_mask: (batch, seq), 1 = token, 0 = padding."""

    def forward(self, x, attention_mask=None):
        n = x.shape[1]
        q, k, v = self.project(x, x, x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        visible = torch.tril(torch.ones(n, n, dtype=torch.bool, device=x.device))
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None, :].bool()
        scores = scores.masked_fill(~visible, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return self.out_proj(self.merge(weights @ v))


class BufferAttention(Projections):
    """mask: (batch, seq), 1 = token, 0 = an empty slot, whose contents do not matter and may be anything."""

    def forward(self, x, mask=None):
        q, k, v = self.project(x, x, x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * -10000.0
        return self.out_proj(self.merge(F.softmax(scores, dim=-1) @ v))


class ScratchAttention(Projections):
    def forward(self, x):
        q, k, v = self.project(x, x, x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        e = torch.exp(scores)
        weights = e / e.sum(dim=-1, keepdim=True)
        return self.out_proj(self.merge(weights @ v))


class MapAttention(Projections):
    def forward(self, x):
        q, k, v = self.project(x, x, x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        self.attention_map = weights = F.softmax(scores, dim=-1).detach()
        return self.out_proj(self.merge(weights @ v))


class ClipAttention(Projections):
    def forward(self, x):
        q, k, v = (t.squeeze() for t in self.project(x, x, x))
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.head_dim), dim=-1)
        return self.out_proj(self.merge(weights @ v))


class NormAttention(Projections):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.q_norm = nn.LayerNorm(dim // heads)
        self.k_norm = nn.LayerNorm(dim // heads)

    def forward(self, x):
        q, k, v = self.project(x, x, x)
        q, k = self.q_norm(q), self.q_norm(k)
        return self.out_proj(self.merge(F.scaled_dot_product_attention(q, k, v)))


class FastAttention(Projections):
    """Fused when evaluating, written out when training so that the weights can be dropped."""

    def __init__(self, dim, heads, dropout=0.0):
        super().__init__(dim, heads)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.project(x, x, x)
        if not self.training:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.dim)
            out = self.dropout(scores.softmax(-1)) @ v
        return self.out_proj(self.merge(out))


class FlatAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.W = nn.Linear(dim, 3 * dim)
        self.O = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.W(x.view(b * n, d)).view(b, n, 3, self.heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.O(y.transpose(1, 2).reshape(b * n, d)).view(b, n, d)


class QueryAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim)

    def forward(self, query, key, value):
        b, n, d = query.shape
        k = self.wk(key).view(b, -1, self.heads, self.head_dim).transpose(1, 2)
        v = self.wv(value).view(b, -1, self.heads, self.head_dim).transpose(1, 2)
        query /= math.sqrt(self.head_dim)
        q = self.wq(query).view(b, n, self.heads, self.head_dim).transpose(1, 2)
        weights = torch.softmax(q @ k.transpose(2, 3), dim=-1)
        return self.wo((weights @ v).transpose(1, 2).reshape(b, n, d))


class HeadsAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.inner = self.num_heads * self.head_dim
        self.query = nn.Linear(embed_dim, self.inner)
        self.key = nn.Linear(embed_dim, self.inner)
        self.value = nn.Linear(embed_dim, self.inner)
        self.out = nn.Linear(self.inner, embed_dim)

    def forward(self, x):
        shape = (*x.shape[:2], self.num_heads, self.head_dim)
        q, k, v = (w(x).view(shape).transpose(1, 2) for w in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(*x.shape[:2], self.inner))


class AssignmentAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size, self.heads = embed_size, heads
        self.W_q = nn.Linear(embed_size, embed_size)
        self.W_k = nn.Linear(embed_size, embed_size)
        self.W_v = nn.Linear(embed_size, embed_size)
        self.W_o = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        b, n, d = x.shape
        q = self.W_q(x).view(b, n, self.heads, d // self.heads).permute(0, 2, 1, 3)
        k = self.W_k(x).view(b, n, self.heads, d // self.heads).permute(0, 2, 1, 3)
        v = self.W_v(x).view(b, n, self.heads, d // self.heads).permute(0, 2, 1, 3)
        scores = torch.matmul(q, k.permute(0, 1, 3, 2))
        weights = torch.softmax(scores, dim=-1)
        out = torch.matmul(weights, v).contiguous().view(b, n, d)
        return self.W_o(out)
