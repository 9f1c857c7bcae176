import torch
import torch.nn as nn


class GraphTransformerLayer(nn.Module):
    """Self-attention over the nodes of a graph, restricted to the edges.

    Args:
        hidden_dim: node feature size
        num_heads: attention heads
        dropout: dropout rate
    """

    def __init__(self, hidden_dim=64, num_heads=4, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.attn = nn.MultiheadAttention(hidden_dim, num_heads, dropout=dropout, batch_first=True)
        self.norm1 = nn.LayerNorm(hidden_dim)
        self.norm2 = nn.LayerNorm(hidden_dim)
        self.ffn = nn.Sequential(
            nn.Linear(hidden_dim, hidden_dim * 2),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim * 2, hidden_dim),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, h, adj):
        """
        h:   (batch, nodes, hidden_dim)
        adj: (batch, nodes, nodes), adj[b, i, j] != 0 if node i receives from node j
        """
        n = h.size(1)
        eye = torch.eye(n, dtype=torch.bool, device=h.device)
        # nn.MultiheadAttention: True means "not allowed to attend"; a node always sees itself
        blocked = ~((adj != 0) | eye)
        blocked = blocked.repeat(self.num_heads, 1, 1)

        h_norm = self.norm1(h)
        out, _ = self.attn(h_norm, h_norm, h_norm, attn_mask=blocked, need_weights=False)
        h = h + self.dropout(out)
        h = h + self.dropout(self.ffn(self.norm2(h)))
        return h
