"""GATv2 node classifier on an edge list, without external graph libraries."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def edge_softmax(logits, target, num_nodes):
    """Softmax over the incoming edges of each node. logits (E, H), target (E,)."""
    index = target.unsqueeze(-1).expand_as(logits)
    peak = logits.new_full((num_nodes, logits.size(1)), float("-inf"))
    peak = peak.scatter_reduce(0, index, logits.detach(), reduce="amax", include_self=True)
    e = (logits - peak[target]).exp()
    total = logits.new_zeros(num_nodes, logits.size(1)).index_add(0, target, e)
    return e / total[target]


class GATv2Layer(nn.Module):
    """``concat=False`` averages the heads (used for the output layer)."""

    def __init__(self, in_dim, head_dim, heads, concat=True, dropout=0.0, slope=0.2):
        super().__init__()
        self.heads, self.head_dim, self.concat = heads, head_dim, concat
        self.dropout, self.slope = dropout, slope
        self.lin_src = nn.Linear(in_dim, heads * head_dim)
        self.lin_dst = nn.Linear(in_dim, heads * head_dim)
        self.att = nn.Parameter(torch.empty(heads, head_dim))
        out_dim = heads * head_dim if concat else head_dim
        self.residual = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))
        nn.init.xavier_uniform_(self.lin_src.weight)
        nn.init.xavier_uniform_(self.lin_dst.weight)
        nn.init.xavier_uniform_(self.att)

    def forward(self, x, edge_index):
        """edge_index[0] sends to edge_index[1]."""
        n = x.size(0)
        src, dst = edge_index
        left = self.lin_src(x).view(n, self.heads, self.head_dim)
        right = self.lin_dst(x).view(n, self.heads, self.head_dim)
        # v2: the nonlinearity comes before the attention vector
        logits = (F.leaky_relu(left[src] + right[dst], self.slope) * self.att).sum(dim=-1)
        alpha = edge_softmax(logits, dst, n)
        alpha = F.dropout(alpha, self.dropout, training=self.training)
        message = left[src] * alpha.unsqueeze(-1)
        out = left.new_zeros(n, self.heads, self.head_dim).index_add(0, dst, message)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.residual(x) + self.bias


class GAT(nn.Module):
    """Two hidden layers and an averaged output layer.

    Duplicate self loops are avoided: existing ones are removed before one per node is added.
    """

    def __init__(self, in_dim=32, num_classes=7, head_dim=8, heads=4, dropout=0.5):
        super().__init__()
        hidden = heads * head_dim
        self.dropout = dropout
        self.conv1 = GATv2Layer(in_dim, head_dim, heads, dropout=dropout)
        self.conv2 = GATv2Layer(hidden, head_dim, heads, dropout=dropout)
        self.out = GATv2Layer(hidden, num_classes, heads, concat=False, dropout=dropout)
        self.norm1 = nn.LayerNorm(hidden)
        self.norm2 = nn.LayerNorm(hidden)

    @staticmethod
    def with_self_loops(edge_index, num_nodes):
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
        loop = torch.arange(num_nodes, device=edge_index.device)
        return torch.cat([edge_index, loop.expand(2, -1)], dim=1)

    def forward(self, x, edge_index):
        """x: (nodes, in_dim) features, edge_index: (2, edges). Returns logits (nodes, num_classes)."""
        edge_index = self.with_self_loops(edge_index, x.size(0))
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.elu(self.norm1(self.conv1(x, edge_index)))
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.elu(self.norm2(self.conv2(x, edge_index)))
        x = F.dropout(x, self.dropout, training=self.training)
        return self.out(x, edge_index)
