"""Graph attention network for node classification, written with plain scatter operations."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def add_self_loops(edge_index, num_nodes):
    """Replace whatever self loops exist by exactly one per node."""
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    loops = torch.arange(num_nodes, device=edge_index.device)
    return torch.cat([edge_index, loops.expand(2, -1)], dim=1)


def scatter_softmax(scores, index, num_nodes):
    """Softmax of (E, H) scores within the groups given by ``index`` (E,)."""
    idx = index.unsqueeze(-1).expand_as(scores)
    peak = scores.new_full((num_nodes, scores.size(1)), float("-inf"))
    peak = peak.scatter_reduce(0, idx, scores.detach(), reduce="amax", include_self=True)
    weights = torch.exp(scores - peak[index])
    total = scores.new_zeros(num_nodes, scores.size(1)).scatter_add(0, idx, weights)
    return weights / total[index]


class GATConv(nn.Module):
    """Every node i averages its in-neighbours j (edges j -> i) with learned weights."""

    def __init__(self, in_dim, out_dim, heads, concat=True, negative_slope=0.2, dropout=0.0):
        super().__init__()
        self.heads, self.out_dim, self.concat = heads, out_dim, concat
        self.negative_slope = negative_slope
        self.lin = nn.Linear(in_dim, heads * out_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_dim))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_dim))
        self.bias = nn.Parameter(torch.zeros(heads * out_dim if concat else out_dim))
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.lin.weight)
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x, edge_index):
        """edge_index must hold at least one incoming edge per node."""
        n = x.size(0)
        src, dst = edge_index
        h = self.lin(x).view(n, self.heads, self.out_dim)
        # a^T [Wh_i || Wh_j] splits into one term per end of the edge
        score = (h * self.att_src).sum(-1)[src] + (h * self.att_dst).sum(-1)[dst]
        alpha = scatter_softmax(F.leaky_relu(score, self.negative_slope), dst, n)
        alpha = self.dropout(alpha)
        messages = h[src] * alpha.unsqueeze(-1)
        out = torch.zeros_like(h).index_add(0, dst, messages)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.bias


class GAT(nn.Module):
    """
    x:          (N, in_dim) node features
    edge_index: (2, E) long, source nodes in row 0 and target nodes in row 1
    returns:    (N, num_classes) logits
    """

    def __init__(self, in_dim=64, hidden=8, num_classes=7, heads=8, out_heads=1, dropout=0.6):
        super().__init__()
        self.conv1 = GATConv(in_dim, hidden, heads, concat=True, dropout=dropout)
        self.conv2 = GATConv(hidden * heads, num_classes, out_heads, concat=False, dropout=dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, edge_index):
        edge_index = add_self_loops(edge_index, x.size(0))
        x = F.elu(self.conv1(self.dropout(x), edge_index))
        return self.conv2(self.dropout(x), edge_index)
