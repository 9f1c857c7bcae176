import torch
import torch.nn as nn


class GraphormerAttention(nn.Module):
    """Multi-head attention of Graphormer with the spatial encoding of this layer.

    Node 0 of every graph is the virtual [VNode].

    Args:
        hidden_dim, num_heads
        num_spatial: number of shortest-path buckets (0 = unreachable)

    Shapes:
        x            [B, N + 1, hidden_dim]
        attn_bias    [B, num_heads, N + 1, N + 1]  edge encoding from the collator, the
                     same tensor for all layers
        spatial_pos  [B, N, N]  long
        node_mask    [B, N + 1] bool, True for existing nodes
    """

    def __init__(self, hidden_dim=64, num_heads=4, num_spatial=16, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.spatial_pos_encoder = nn.Embedding(num_spatial, num_heads)
        self.virtual_distance = nn.Embedding(1, num_heads)
        self.qkv = nn.Linear(hidden_dim, 3 * hidden_dim)
        self.out_proj = nn.Linear(hidden_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attn_bias, spatial_pos, node_mask=None):
        B, M, D = x.shape

        spatial = self.spatial_pos_encoder(spatial_pos).permute(0, 3, 1, 2)
        t = self.virtual_distance.weight.view(1, self.num_heads, 1)
        bias = attn_bias
        bias[:, :, 1:, 1:] += spatial
        bias[:, :, 1:, 0] += t
        bias[:, :, 0, :] += t

        q, k, v = self.qkv(x).view(B, M, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q * self.scaling, k.transpose(-1, -2)) + bias
        if node_mask is not None:
            scores = scores.masked_fill(~node_mask[:, None, None, :], float("-inf"))

        attn = self.dropout(torch.softmax(scores, dim=-1))
        out = torch.matmul(attn, v).transpose(1, 2).reshape(B, M, D)
        return self.out_proj(out)
