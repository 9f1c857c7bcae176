from typing import Optional

import torch
import torch.nn as nn


class GraphormerAttention(nn.Module):
    """Dense self attention over the nodes of a batch of graphs, with centrality and spatial encodings.

    Parameters
    ----------
    x : FloatTensor [B, N, C]
    spatial_pos : LongTensor [B, N, N]
        shortest-path distances, 0 for the node itself, ``max_dist`` for unreachable pairs
    degree : LongTensor [B, N]
    node_mask : BoolTensor [B, N], optional
        True for real nodes
    """

    def __init__(
        self,
        embed_dim: int = 64,
        num_heads: int = 8,
        max_dist: int = 20,
        max_degree: int = 64,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.degree_encoder = nn.Embedding(max_degree, embed_dim)
        self.spatial_encoder = nn.Embedding(max_dist + 1, num_heads)
        self.norm = nn.LayerNorm(embed_dim)
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: torch.Tensor,
        spatial_pos: torch.Tensor,
        degree: torch.Tensor,
        node_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        B, N, C = x.shape
        x = x + self.degree_encoder(degree)
        qkv = self.in_proj(self.norm(x)).view(B, N, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)

        graph_attn_bias = self.spatial_encoder(spatial_pos)
        graph_attn_bias = graph_attn_bias.view(B, self.num_heads, N, N)

        attn = torch.matmul(q * self.scaling, k.transpose(-1, -2)) + graph_attn_bias
        if node_mask is not None:
            attn = attn.masked_fill(~node_mask[:, None, None, :], torch.finfo(attn.dtype).min)
        attn = self.dropout(torch.softmax(attn, dim=-1))
        out = torch.matmul(attn, v).permute(0, 2, 1, 3).reshape(B, N, C)
        return x + self.out_proj(out)
