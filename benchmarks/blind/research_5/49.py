import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class VariateAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, d = x.shape
        q = self.query(x).view(b, n, self.n_heads, -1)
        k = self.key(x).view(b, n, self.n_heads, -1)
        v = self.value(x).view(b, n, self.n_heads, -1)
        scores = torch.einsum("blhe,bshe->bhls", q, k) / math.sqrt(d // self.n_heads)
        a = scores.softmax(dim=-1)
        y = torch.einsum("bhls,bshd->blhd", self.dropout(a), v)
        return self.out(y.reshape(b, n, d)), a


class InvertedTransformer(nn.Module):
    """iTransformer: one token per variate, made of its whole history.

    Attention therefore runs between the variates and not along the time; there is no mask and no
    positional embedding, the order of the variates carries no meaning.

    Args:
        x: ``[B, seq_len, variates]``
    Returns:
        forecast ``[B, pred_len, variates]`` and the attention maps of the layers,
        each ``[B, heads, variates, variates]``.
    """

    def __init__(self, seq_len=48, pred_len=12, d_model=64, n_heads=4, e_layers=2, d_ff=128, dropout=0.1):
        super().__init__()
        self.embed = nn.Linear(seq_len, d_model)
        self.attentions = nn.ModuleList([VariateAttention(d_model, n_heads, dropout) for _ in range(e_layers)])
        self.ffns = nn.ModuleList(
            [nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
             for _ in range(e_layers)]
        )
        self.norms1 = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(e_layers)])
        self.norms2 = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(e_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.projector = nn.Linear(d_model, pred_len)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True).detach()
        std = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False).detach() + 1e-5)
        h = self.dropout(self.embed(((x - mean) / std).transpose(1, 2)))

        maps = []
        for attention, ffn, norm1, norm2 in zip(self.attentions, self.ffns, self.norms1, self.norms2):
            y, a = attention(h)
            h = norm1(h + self.dropout(y))
            h = norm2(h + self.dropout(ffn(h)))
            maps.append(a)

        y = self.projector(self.norm(h)).transpose(1, 2)
        return y * std + mean, maps
