import math

import torch
import torch.nn as nn


class MultiheadAttentionBlock(nn.Module):
    def __init__(self, dim, num_heads, layer_norm=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.fc_q = nn.Linear(dim, dim)
        self.fc_k = nn.Linear(dim, dim)
        self.fc_v = nn.Linear(dim, dim)
        self.fc_o = nn.Linear(dim, dim)
        self.ln0 = nn.LayerNorm(dim) if layer_norm else nn.Identity()
        self.ln1 = nn.LayerNorm(dim) if layer_norm else nn.Identity()

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x, y, y_mask=None):
        q = self.fc_q(x)
        qh, kh, vh = self.split(q), self.split(self.fc_k(y)), self.split(self.fc_v(y))
        logits = qh @ kh.transpose(-2, -1) * math.sqrt(self.head_dim)
        if y_mask is not None:
            logits = logits.masked_fill(~y_mask[:, None, None, :], float("-inf"))
        h = logits.softmax(dim=-1) @ vh
        h = self.ln0(q + h.transpose(1, 2).flatten(2))
        return self.ln1(h + torch.relu(self.fc_o(h)))


class PMA(nn.Module):
    """Pooling by multihead attention: ``num_seeds`` learned vectors read a set.

    ``mask`` is True for the elements that exist.
    """

    def __init__(self, dim=64, num_heads=4, num_seeds=1, layer_norm=True):
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.seeds)
        self.rff = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.mab = MultiheadAttentionBlock(dim, num_heads, layer_norm)

    def forward(self, x, mask=None):
        seeds = self.seeds.expand(x.size(0), -1, -1)
        return self.mab(seeds, self.rff(x), mask)
