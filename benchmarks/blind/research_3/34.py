import math

import torch
import torch.nn as nn


class BSTransformerLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.w_q = nn.Linear(dim, dim, bias=False)
        self.w_k = nn.Linear(dim, dim, bias=False)
        self.w_v = nn.Linear(dim, dim, bias=False)
        self.w_o = nn.Linear(dim, dim, bias=False)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.LeakyReLU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        B, T, D = x.shape
        q = self.w_q(x).view(B, T, self.heads, self.head_dim).transpose(1, 2)
        k = self.w_k(x).view(B, T, self.heads, self.head_dim).transpose(1, 2)
        v = self.w_v(x).view(B, T, self.heads, self.head_dim).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e-9)
        attn = self.dropout(torch.softmax(scores, dim=-1))

        z = torch.matmul(attn, v).transpose(1, 2).contiguous().view(B, T, D)
        x = self.norm1(x + self.dropout(self.w_o(z)))
        return self.norm2(x + self.dropout(self.ffn(x)))


class BehaviorSequenceTransformer(nn.Module):
    """BST (Chen et al. 2019): the target item is appended to the behaviour sequence,
    the output at the target goes to the MLP.

    hist: [B, T] item ids (0 = padding), times: [B, T] bucketed time gaps, target: [B].
    """

    def __init__(self, num_items=500, num_time_buckets=64, dim=32, heads=4, blocks=1, dropout=0.1):
        super().__init__()
        self.item_emb = nn.Embedding(num_items, dim, padding_idx=0)
        self.time_emb = nn.Embedding(num_time_buckets, dim)
        self.layers = nn.ModuleList([BSTransformerLayer(dim, heads, dropout) for _ in range(blocks)])
        self.mlp = nn.Sequential(
            nn.Linear(dim, 64), nn.LeakyReLU(), nn.Dropout(dropout), nn.Linear(64, 1))

    def forward(self, hist, times, target):
        seq = torch.cat([hist, target.unsqueeze(1)], dim=1)
        t = torch.cat([times, torch.zeros_like(times[:, :1])], dim=1)
        mask = (seq != 0).long()
        mask[:, -1] = 1

        x = self.item_emb(seq) + self.time_emb(t)
        for layer in self.layers:
            x = layer(x, mask)
        return self.mlp(x[:, -1]).squeeze(-1)
