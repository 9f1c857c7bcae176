import torch
import torch.nn as nn


class GraphTransformerLayer(nn.Module):
    """Transformer layer on node features, attention restricted to the edges of the graph.

    Args:
        hidden_dim: node feature size
        num_heads: number of attention heads
        dropout: dropout rate
    """

    def __init__(self, hidden_dim=64, num_heads=4, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.self_attn = nn.MultiheadAttention(hidden_dim, num_heads, dropout=dropout, batch_first=True)
        self.attn_norm = nn.LayerNorm(hidden_dim)
        self.ffn_norm = nn.LayerNorm(hidden_dim)
        self.ffn = nn.Sequential(
            nn.Linear(hidden_dim, 2 * hidden_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(2 * hidden_dim, hidden_dim),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, h, adj):
        """
        h: (batch, nodes, hidden_dim)
        adj: (batch, nodes, nodes), adj[b, i, j] is non-zero if node i may look at node j
        """
        n = h.size(1)
        eye = torch.eye(n, dtype=torch.bool, device=h.device)
        connected = adj.bool() | eye  # a node always sees itself

        # nn.MultiheadAttention wants (batch * num_heads, nodes, nodes), True = not allowed
        attn_mask = (~connected).repeat(self.num_heads, 1, 1)

        z = self.attn_norm(h)
        z, _ = self.self_attn(z, z, z, attn_mask=attn_mask, need_weights=False)
        h = h + self.dropout(z)
        h = h + self.dropout(self.ffn(self.ffn_norm(h)))
        return h
