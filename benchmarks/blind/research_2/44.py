import torch
import torch.nn as nn


class GraphAttnBias(nn.Module):
    """Attention bias from shortest-path distances; index 0 of the graph is the virtual node [VNode].

    The bias of the pairs with [VNode] is a learned scalar per head, the same in both directions.
    """

    def __init__(self, num_heads, num_spatial):
        super().__init__()
        self.num_heads = num_heads
        # distance 0 is padding, d + 1 stands for a shortest path of length d
        self.spatial_pos_encoder = nn.Embedding(num_spatial, num_heads, padding_idx=0)
        self.graph_token_virtual_distance = nn.Embedding(1, num_heads)

    def forward(self, spatial_pos):
        n_graph, n_node = spatial_pos.shape[:2]
        bias = self.spatial_pos_encoder.weight.new_zeros(n_graph, self.num_heads, n_node + 1, n_node + 1)
        bias[:, :, 1:, 1:] = bias[:, :, 1:, 1:] + self.spatial_pos_encoder(spatial_pos).permute(0, 3, 1, 2)
        t = self.graph_token_virtual_distance.weight.view(1, self.num_heads, 1)
        bias[:, :, 1:, 0] = bias[:, :, 1:, 0] + t
        bias[:, :, 0, :] = bias[:, :, 0, :] + t
        return bias


class GraphormerLayer(nn.Module):
    def __init__(self, dim, num_heads, ffn_dim, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (dim // num_heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(), nn.Linear(ffn_dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attn_bias, padding_mask):
        B, N, C = x.shape
        h = self.norm1(x)
        q = self.q_proj(h).view(B, N, self.num_heads, -1).transpose(1, 2) * self.scaling
        k = self.k_proj(h).view(B, N, self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(h).view(B, N, self.num_heads, -1).transpose(1, 2)
        a = q @ k.transpose(-1, -2) + attn_bias
        a = a.masked_fill(padding_mask[:, None, None, :], float("-inf"))
        a = self.dropout(a.softmax(dim=-1))
        x = x + self.dropout(self.out_proj((a @ v).transpose(1, 2).reshape(B, N, C)))
        return x + self.dropout(self.ffn(self.norm2(x)))


class Graphormer(nn.Module):
    """Graph-level readout from [VNode].

    Args:
        node_type: (B, N), 0 for padding
        degree: (B, N), 0 for padding, otherwise degree + 1
        spatial_pos: (B, N, N), 0 for padding, otherwise shortest path + 1 (clipped)
    """

    def __init__(self, num_types=64, max_degree=16, num_spatial=20, dim=64, num_heads=4, num_layers=2, ffn_dim=64,
                 num_classes=1, dropout=0.1):
        super().__init__()
        self.atom_encoder = nn.Embedding(num_types, dim, padding_idx=0)
        self.degree_encoder = nn.Embedding(max_degree, dim, padding_idx=0)
        self.graph_token = nn.Embedding(1, dim)
        self.graph_attn_bias = GraphAttnBias(num_heads, num_spatial)
        self.layers = nn.ModuleList([GraphormerLayer(dim, num_heads, ffn_dim, dropout) for _ in range(num_layers)])
        self.final_ln = nn.LayerNorm(dim)
        self.out_proj = nn.Linear(dim, num_classes)

    def forward(self, node_type, degree, spatial_pos):
        B = node_type.size(0)
        padding_mask = node_type.eq(0)
        padding_mask = torch.cat([padding_mask.new_zeros(B, 1), padding_mask], dim=1)
        x = self.atom_encoder(node_type) + self.degree_encoder(degree)
        x = torch.cat([self.graph_token.weight.unsqueeze(0).expand(B, -1, -1), x], dim=1)
        attn_bias = self.graph_attn_bias(spatial_pos)
        for layer in self.layers:
            x = layer(x, attn_bias, padding_mask)
        return self.out_proj(self.final_ln(x[:, 0]))
