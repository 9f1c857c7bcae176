import torch
import torch.nn as nn


class GraphormerAttention(nn.Module):
    """Dense attention over the nodes of a graph with the spatial encoding of Graphormer.

    Each head learns one bias per shortest-path distance. Distances above ``max_dist`` share the bias of
    ``max_dist``; pairs in different components, marked by -1, have a bias of their own.

    Args:
        dim: node width.
        num_heads: number of heads.
        max_dist: largest distance that is told apart.
    """

    def __init__(self, dim=128, num_heads=8, max_dist=20, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.max_dist = max_dist
        self.unreachable = max_dist + 1
        self.spatial_bias = nn.Embedding(max_dist + 2, num_heads)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.spatial_bias.weight, std=0.02)

    def bias(self, spd):
        index = spd.clamp(0, self.max_dist)
        index = index.masked_fill(index < 0, self.unreachable)
        return self.spatial_bias(index).permute(0, 3, 1, 2)

    def forward(self, x, spd, node_mask=None):
        """
        Args:
            x: [B, N, dim].
            spd: long [B, N, N], shortest-path distances, -1 where there is no path.
            node_mask: bool [B, N], True for real nodes.
        """
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * self.scale) @ k.transpose(-1, -2) + self.bias(spd)
        if node_mask is not None:
            scores = scores.masked_fill(~node_mask[:, None, None, :], torch.finfo(scores.dtype).min)
        attn = self.dropout(scores.softmax(dim=-1))
        return self.out((attn @ v).transpose(1, 2).reshape(b, n, c))
