from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphormerAttention(nn.Module):
    """Self attention with spatial encoding.

    Following "Do Transformers Really Perform Bad for Graph Representation?", the logit of
    a node pair is  q_i k_j / sqrt(d) + b[phi(i, j)]  with phi the shortest path distance.

    Args:
        x: node features [B, N, C]
        spatial_pos: long [B, N, N], distances clipped to ``max_dist``
        node_mask: bool [B, N], True for real nodes
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, max_dist: int = 20, dropout: float = 0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.dropout = dropout
        self.spatial_bias = nn.Embedding(max_dist + 1, num_heads)
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        nn.init.normal_(self.spatial_bias.weight, std=0.02)

    def forward(self, x, spatial_pos, node_mask: Optional[torch.Tensor] = None):
        B, N, C = x.shape
        q, k, v = self.in_proj(x).view(B, N, 3, self.num_heads, self.head_dim).unbind(2)
        q = q.transpose(1, 2) * self.scaling
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)

        logits = torch.matmul(q, k.transpose(-2, -1))
        if node_mask is not None:
            logits = logits.masked_fill(~node_mask[:, None, None, :], -1e9)

        bias = self.spatial_bias(spatial_pos).permute(0, 3, 1, 2)
        probs = F.softmax(logits, dim=-1) + bias
        probs = F.dropout(probs, p=self.dropout, training=self.training)

        y = torch.matmul(probs, v).transpose(1, 2).reshape(B, N, C)
        return self.out_proj(y)
