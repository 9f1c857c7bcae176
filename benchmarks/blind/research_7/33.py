import math

import torch
import torch.nn as nn


class BehaviorSequenceLayer(nn.Module):
    """Transformer layer of the Behavior Sequence Transformer.

    The target item is appended to the clicked items, the time gap to the target is embedded
    and added, and the output is the flattened sequence for the MLP of the ranking model.

    items:     [B, T, D]  clicked items, padded
    target:    [B, D]
    time_gaps: [B, T]     bucketised age of each click
    mask:      [B, T]     1 for real clicks, 0 for padding
    """

    def __init__(self, dim: int = 32, num_heads: int = 4, num_time_buckets: int = 64, dropout: float = 0.0):
        super().__init__()
        assert dim % num_heads == 0
        self.h = num_heads
        self.d_k = dim // num_heads
        self.time_emb = nn.Embedding(num_time_buckets, dim)
        self.w_q = nn.Linear(dim, dim)
        self.w_k = nn.Linear(dim, dim)
        self.w_v = nn.Linear(dim, dim)
        self.w_o = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.LeakyReLU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, items, target, time_gaps, mask):
        B = items.size(0)
        seq = torch.cat([items, target.unsqueeze(1)], dim=1)
        gaps = torch.cat([time_gaps, time_gaps.new_zeros(B, 1)], dim=1)
        valid = torch.cat([mask.bool(), mask.new_ones(B, 1).bool()], dim=1)
        x = seq + self.time_emb(gaps)

        def split(t):
            return t.view(B, -1, self.h, self.d_k).transpose(1, 2)

        q, k, v = split(self.w_q(x)), split(self.w_k(x)), split(self.w_v(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(valid[:, None, None, :], -1e9)
        attn = self.dropout(torch.softmax(scores, dim=-1))
        ctx = torch.matmul(attn, v).transpose(1, 2).reshape(B, -1, self.h * self.d_k)

        x = self.norm1(x + self.dropout(self.w_o(ctx)))
        x = self.norm2(x + self.dropout(self.ffn(x)))
        return (x * valid.unsqueeze(-1)).flatten(1)
