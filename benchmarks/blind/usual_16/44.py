import torch
import torch.nn as nn


class GraphMaskedAttention(nn.Module):
    """Transformer layer on node features, attention restricted to the edges of each graph.

    Args:
        x: (batch, nodes, dim)
        adj: (batch, nodes, nodes), nonzero where node i may attend to node j. Self loops
            are added here.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0, ffn_mult=2):
        super().__init__()
        self.num_heads = num_heads
        self.norm_attn = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)
        self.norm_ffn = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(
            nn.Linear(dim, ffn_mult * dim),
            nn.SiLU(),
            nn.Linear(ffn_mult * dim, dim),
        )
        self.dropout = nn.Dropout(dropout)

    def edge_mask(self, adj):
        n = adj.size(-1)
        connected = adj.bool() | torch.eye(n, dtype=torch.bool, device=adj.device)
        # nn.MultiheadAttention: (batch * heads, L, S), True blocks the pair
        return (~connected).repeat(self.num_heads, 1, 1)

    def forward(self, x, adj):
        h = self.norm_attn(x)
        h, _ = self.attn(h, h, h, attn_mask=self.edge_mask(adj), need_weights=False)
        x = x + self.dropout(h)
        return x + self.dropout(self.ffn(self.norm_ffn(x)))
