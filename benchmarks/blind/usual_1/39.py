import math

import torch
import torch.nn as nn


class PackedAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, bias):
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        logits = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim)
        probs = torch.softmax(logits + bias, dim=-1)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(B, T, C)
        return self.out_proj(out)


class PackedLayer(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = PackedAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, bias):
        x = x + self.attn(self.norm1(x), bias)
        return x + self.mlp(self.norm2(x))


class PackedEncoder(nn.Module):
    """Bidirectional encoder over packed rows.

    Several documents share a row. ``segment_ids`` (B, T) numbers them 1, 2, ... and is 0 for the
    padding at the end of the row. Tokens attend within their own document only; positions restart
    with every document.
    """

    def __init__(self, vocab_size=500, dim=64, num_heads=4, num_layers=2, max_positions=128):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, dim)
        self.pos = nn.Embedding(max_positions, dim)
        self.layers = nn.ModuleList(PackedLayer(dim, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)

    @staticmethod
    def positions_from_segments(segment_ids):
        T = segment_ids.shape[1]
        idx = torch.arange(T, device=segment_ids.device).expand_as(segment_ids)
        is_start = torch.ones_like(segment_ids, dtype=torch.bool)
        is_start[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
        start = torch.where(is_start, idx, torch.zeros_like(idx)).cummax(dim=1).values
        return idx - start

    def forward(self, input_ids, segment_ids):
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        same = same & (segment_ids != 0)[:, None, :]

        x = self.tok(input_ids) + self.pos(self.positions_from_segments(segment_ids))
        bias = torch.zeros(same.shape, dtype=x.dtype, device=x.device)
        bias = bias.masked_fill(~same, float("-inf")).unsqueeze(1)
        for layer in self.layers:
            x = layer(x, bias)
        return self.norm(x)
