import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def clones(make, n):
    return nn.ModuleList([make() for _ in range(n)])


def attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, 1e-9)
    p_attn = F.softmax(scores, dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(lambda: nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            # Same mask applied to all h heads.
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class DecoderLayer(nn.Module):
    "Decoder is made of self-attn, src-attn, and feed forward (defined below)"

    def __init__(self, d_model=64, heads=4, d_ff=128, dropout=0.1):
        super().__init__()
        self.self_attn = MultiHeadedAttention(heads, d_model, dropout)
        self.src_attn = MultiHeadedAttention(heads, d_model, dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model)
        )
        self.norms = clones(lambda: nn.LayerNorm(d_model), 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        """
        x: (batch, tgt_len, d_model), memory: (batch, src_len, d_model)
        src_mask: (batch, 1, src_len), tgt_mask: (batch, tgt_len, tgt_len); zero means hidden.
        When tgt_mask is not given, subsequent positions are hidden.
        """
        if tgt_mask is None:
            t = x.size(1)
            tgt_mask = torch.tril(torch.ones(1, t, t, dtype=torch.uint8, device=x.device))
        y = self.norms[0](x)
        x = x + self.dropout(self.self_attn(y, y, y, tgt_mask))
        y = self.norms[1](x)
        x = x + self.dropout(self.src_attn(y, memory, memory, src_mask))
        return x + self.dropout(self.feed_forward(self.norms[2](x)))
