import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphormerLayer(nn.Module):
    """Transformer layer on graphs with centrality and spatial encoding.

    Args:
        x: node features ``[B, N, dim]``
        spatial_pos: shortest path distances ``[B, N, N]`` (long), clipped to ``max_dist``
        degree: node degrees ``[B, N]`` (long), clipped to ``max_degree``
        node_mask: bool ``[B, N]``, True for real nodes
    """

    def __init__(self, dim=64, num_heads=4, max_dist=10, max_degree=16, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.max_dist = max_dist
        self.max_degree = max_degree
        self.degree_encoder = nn.Embedding(max_degree + 1, dim)
        self.spatial_pos_encoder = nn.Embedding(max_dist + 1, num_heads)
        self.attn_norm = nn.LayerNorm(dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)
        self.linear_out = nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, spatial_pos, degree, node_mask=None):
        b, n, d = x.shape
        x = x + self.degree_encoder(degree.clamp(max=self.max_degree))

        bias = self.spatial_pos_encoder(spatial_pos.clamp(0, self.max_dist))
        bias = bias.view(b, self.num_heads, n, n)

        h = self.attn_norm(x)
        q = self.linear_q(h).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.linear_k(h).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.linear_v(h).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim) + bias
        if node_mask is not None:
            scores = scores.masked_fill(~node_mask[:, None, None, :], float("-inf"))
        weights = self.dropout(F.softmax(scores, dim=-1))
        h = (weights @ v).transpose(1, 2).reshape(b, n, d)
        x = x + self.dropout(self.linear_out(h))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))
