import torch
import torch.nn as nn


class GraphormerLayer(nn.Module):
    """One Graphormer block on padded graphs with a virtual node in front.

    x: [B, N, dim]; degree: [B, N] (0 at padding); spatial_pos: [B, N, N] shortest path lengths, -1 for
    unreachable pairs; node_mask: [B, N], True for real nodes. Returns [B, N + 1, dim], index 0 is the graph token.
    """

    def __init__(self, dim=64, num_heads=4, max_dist=10, max_degree=16):
        super().__init__()
        self.num_heads = num_heads
        self.max_dist = max_dist
        self.degree_emb = nn.Embedding(max_degree + 1, dim, padding_idx=0)
        self.graph_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.dist_bias = nn.Embedding(max_dist + 2, num_heads)
        self.virtual_bias = nn.Parameter(torch.zeros(num_heads))
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def _bias(self, spatial_pos):
        b, n, _ = spatial_pos.shape
        idx = spatial_pos.clamp(max=self.max_dist)
        idx = torch.where(spatial_pos < 0, torch.full_like(idx, self.max_dist + 1), idx)
        full = self.virtual_bias.view(1, -1, 1, 1).expand(b, -1, n + 1, n + 1).clone()
        full[:, :, 1:, 1:] = self.dist_bias(idx).permute(0, 3, 1, 2)
        return full

    def forward(self, x, degree, spatial_pos, node_mask=None):
        b, n, d = x.shape
        x = x + self.degree_emb(degree.clamp(max=self.degree_emb.num_embeddings - 1))
        x = torch.cat([self.graph_token.expand(b, -1, -1), x], dim=1)

        h = self.norm1(x)
        q, k, v = self.qkv(h).view(b, n + 1, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5 + self._bias(spatial_pos)
        if node_mask is not None:
            seen = torch.cat([node_mask.new_ones(b, 1), node_mask], dim=1)
            scores = scores.masked_fill(~seen[:, None, None, :], float("-inf"))
        y = scores.softmax(-1) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(b, n + 1, d))
        return x + self.ffn(self.norm2(x))
