import torch
import torch.nn as nn
import torch.nn.functional as F


class EdgeTransformerConv(nn.Module):
    """Graph transformer layer with edge features (Shi et al., 2021).

    Args:
        x: [N, in_dim]
        edge_index: [2, E]; messages go from ``edge_index[0]`` to ``edge_index[1]``
        edge_attr: [E, edge_dim]

    Each node attends over its incoming edges.
    """

    def __init__(self, in_dim=16, out_dim=8, heads=4, edge_dim=6, beta=True):
        super().__init__()
        self.heads = heads
        self.out_dim = out_dim
        self.lin_query = nn.Linear(in_dim, heads * out_dim)
        self.lin_key = nn.Linear(in_dim, heads * out_dim)
        self.lin_value = nn.Linear(in_dim, heads * out_dim)
        self.lin_edge = nn.Linear(edge_dim, heads * out_dim, bias=False)
        self.lin_skip = nn.Linear(in_dim, heads * out_dim)
        self.lin_beta = nn.Linear(3 * heads * out_dim, 1, bias=False) if beta else None

    def forward(self, x, edge_index, edge_attr=None):
        n = x.size(0)
        row, col = edge_index
        q = self.lin_query(x).view(n, self.heads, self.out_dim)
        k = self.lin_key(x).view(n, self.heads, self.out_dim)
        v = self.lin_value(x).view(n, self.heads, self.out_dim)

        k_e, v_e = k[row], v[row]
        if edge_attr is not None:
            e = self.lin_edge(edge_attr).view(-1, self.heads, self.out_dim)
            k_e, v_e = k_e + e, v_e + e

        alpha = (q[col] * k_e).sum(dim=-1) / self.out_dim ** 0.5
        alpha = (alpha - alpha.max(dim=0, keepdim=True)[0]).exp()
        norm = alpha.new_zeros(n, self.heads).index_add(0, row, alpha)
        alpha = alpha / (norm[row] + 1e-16)

        out = x.new_zeros(n, self.heads, self.out_dim)
        out = out.index_add(0, col, v_e * alpha.unsqueeze(-1)).flatten(1)

        skip = self.lin_skip(x)
        if self.lin_beta is None:
            return F.relu(out + skip)
        gate = torch.sigmoid(self.lin_beta(torch.cat([out, skip, out - skip], dim=-1)))
        return gate * skip + (1 - gate) * out
