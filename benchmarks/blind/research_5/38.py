import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BehaviorSequenceTransformer(nn.Module):
    """BST for click-through rate prediction.

    The target item is appended to the history of the user, and the sequence goes through one
    transformer block. Positions are given by the time gap to the target, in buckets.

    Args:
        history: item ids ``[B, T]``, 0 for padding
        target: item ids ``[B]``
        gaps: time gap buckets ``[B, T]``; the target has bucket 0
    Returns:
        click logits ``[B]``
    """

    def __init__(self, num_items=500, dim=32, num_heads=4, num_buckets=16, dropout=0.2):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.item = nn.Embedding(num_items, dim, padding_idx=0)
        self.gap = nn.Embedding(num_buckets, dim)
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.LeakyReLU(), nn.Linear(4 * dim, dim))
        self.head = nn.Sequential(nn.Linear(2 * dim, 64), nn.LeakyReLU(), nn.Linear(64, 1))

    def _heads(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, history, target, gaps):
        ids = torch.cat([history, target.unsqueeze(1)], dim=1)
        gaps = torch.cat([gaps, torch.zeros_like(target).unsqueeze(1)], dim=1)
        keep = ids.ne(0)
        keep[:, -1] = True

        x = self.item(ids) + self.gap(gaps)
        q, k, v = self._heads(self.wq(x)), self._heads(self.wk(x)), self._heads(self.wv(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))
        weights = F.dropout(scores.softmax(dim=-1), p=self.dropout)
        y = (weights @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.wo(y))
        x = self.norm2(x + self.ffn(x))

        m = keep[:, :-1].unsqueeze(-1).to(x.dtype)
        pooled = (x[:, :-1] * m).sum(dim=1) / m.sum(dim=1).clamp(min=1)
        return self.head(torch.cat([pooled, x[:, -1]], dim=-1)).squeeze(-1)
