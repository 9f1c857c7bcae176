"""With batch_first the heads are merged by a bare view without swapping heads and positions back.

meta-pytorch/opacus #825 (2026)
https://github.com/meta-pytorch/opacus/pull/825
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class DPMultiheadAttention(nn.Module):
        """As nn.MultiheadAttention: forward(query, key, value, key_padding_mask=None), (N, L, E) with batch_first, else
        (L, N, E); key_padding_mask (N, S) bool, True is ignored."""

        def __init__(self, embed_dim=32, num_heads=4, dropout=0.0, batch_first=True):
            super().__init__()
            self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
            self.dropout, self.batch_first = nn.Dropout(dropout), batch_first
            self.qlinear = nn.Linear(embed_dim, embed_dim)
            self.klinear = nn.Linear(embed_dim, embed_dim)
            self.vlinear = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, query, key, value, key_padding_mask=None):
            scaling = self.head_dim ** -0.5
            if not self.batch_first:
                query, key, value = (t.transpose(0, 1) for t in (query, key, value))
            bsz, tgt_len, embed_dim = query.shape
            q = self.qlinear(query) * scaling
            k, v = self.klinear(key), self.vlinear(value)
            q, k, v = (t.view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2).flatten(0, 1) for t in (q, k, v))
            w = torch.bmm(q, k.transpose(1, 2))
            if key_padding_mask is not None:
                w = w.view(bsz, self.num_heads, tgt_len, -1)
                w = w.masked_fill(key_padding_mask[:, None, None, :], float("-inf")).flatten(0, 1)
            y = torch.bmm(self.dropout(F.softmax(w, dim=-1)), v)
            if self.batch_first and rev == 1:
                y = y.contiguous().view(bsz, tgt_len, embed_dim)
            else:
                y = y.view(bsz, self.num_heads, tgt_len, self.head_dim).transpose(1, 2).reshape(bsz, tgt_len, embed_dim)
            y = self.out_proj(y)
            return y if self.batch_first else y.transpose(0, 1)

    torch.manual_seed(0)
    return DPMultiheadAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
