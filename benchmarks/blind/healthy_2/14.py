"""Graph transformer for molecule-sized graphs in dense (padded) form."""
import math

import torch
import torch.nn as nn


class GraphAttention(nn.Module):
    """Attention over direct neighbours; bond features add a bias per head."""

    def __init__(self, dim, edge_dim, num_heads, dropout):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.edge_bias = nn.Linear(edge_dim, num_heads)
        self.o = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h, edge_feat, visible):
        b, n, d = h.shape
        q = self.q(h).view(b, n, self.num_heads, self.head_dim)
        k = self.k(h).view(b, n, self.num_heads, self.head_dim)
        v = self.v(h).view(b, n, self.num_heads, self.head_dim)
        logits = torch.einsum("bihd,bjhd->bijh", q, k) / math.sqrt(self.head_dim)
        logits = logits + self.edge_bias(edge_feat)
        logits = logits.masked_fill(~visible.unsqueeze(-1), float("-inf"))
        alpha = self.dropout(logits.softmax(dim=2))  # over the source nodes j
        out = torch.einsum("bijh,bjhd->bihd", alpha, v)
        return self.o(out.reshape(b, n, d))


class GraphLayer(nn.Module):
    def __init__(self, dim, edge_dim, num_heads, dropout):
        super().__init__()
        self.attn = GraphAttention(dim, edge_dim, num_heads, dropout)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, h, edge_feat, visible):
        h = self.norm1(h + self.dropout(self.attn(h, edge_feat, visible)))
        return self.norm2(h + self.dropout(self.ffn(h)))


class GraphTransformer(nn.Module):
    """Graph-level regression.

    Args of forward:
        node_type: (B, N) long, atom types
        edge_type: (B, N, N) long, 0 = no bond, 1.. = bond types (symmetric)
        lap_pe:    (B, N, K) Laplacian eigenvectors, zero on padding
        num_nodes: (B,) real nodes per graph, at least 1
    """

    def __init__(self, num_atom_types=28, num_bond_types=4, num_eigvecs=8, dim=64, edge_dim=16,
                 num_heads=4, num_layers=3, dropout=0.1, num_targets=1):
        super().__init__()
        self.atom = nn.Embedding(num_atom_types, dim)
        self.bond = nn.Embedding(num_bond_types + 1, edge_dim)
        self.pe = nn.Linear(num_eigvecs, dim)
        self.layers = nn.ModuleList(GraphLayer(dim, edge_dim, num_heads, dropout) for _ in range(num_layers))
        self.readout = nn.Sequential(nn.Linear(dim, dim // 2), nn.ReLU(), nn.Linear(dim // 2, num_targets))

    def forward(self, node_type, edge_type, lap_pe, num_nodes):
        b, n = node_type.shape
        is_node = torch.arange(n, device=node_type.device)[None, :] < num_nodes[:, None]
        if self.training:
            # the sign of an eigenvector is arbitrary, so draw a new one for each graph
            sign = torch.randint(0, 2, (b, 1, lap_pe.size(-1)), device=lap_pe.device) * 2 - 1
            lap_pe = lap_pe * sign.to(lap_pe.dtype)
        h = self.atom(node_type) + self.pe(lap_pe)
        e = self.bond(edge_type)
        # self loops keep the rows of isolated and padded nodes non-empty
        eye = torch.eye(n, dtype=torch.bool, device=h.device)
        visible = (edge_type.gt(0) & is_node[:, None, :]) | eye
        for layer in self.layers:
            h = layer(h, e, visible)
        w = is_node.unsqueeze(-1).to(h.dtype)
        pooled = (h * w).sum(dim=1) / w.sum(dim=1)
        return self.readout(pooled)
