import torch
import torch.nn as nn
import torch.nn.functional as F


def grouped_softmax(values, group, num_groups):
    """Softmax of ``values`` [E, H] within the groups named by ``group`` [E]."""
    idx = group.unsqueeze(-1).expand_as(values)
    top = values.new_zeros(num_groups, values.size(1))
    top = top.scatter_reduce(0, idx, values, reduce="amax", include_self=False)
    ex = (values - top.gather(0, idx)).exp()
    total = ex.new_zeros(num_groups, values.size(1)).scatter_add(0, idx, ex)
    return ex / total.gather(0, idx).clamp(min=1e-16)


class GraphAttention(nn.Module):
    """GAT layer (Velickovic et al., 2018).

    ``edge_index`` is ``[2, E]``; a column ``(s, t)`` is a message from node ``s`` to node ``t``. Each node takes
    the attention-weighted mean of the messages that reach it. Self-loops are added here.
    """

    def __init__(self, in_dim=32, out_dim=16, num_heads=4, negative_slope=0.2, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.out_dim = out_dim
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.lin = nn.Linear(in_dim, num_heads * out_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(num_heads, out_dim))
        self.att_dst = nn.Parameter(torch.empty(num_heads, out_dim))
        self.bias = nn.Parameter(torch.zeros(num_heads * out_dim))
        for p in (self.lin.weight, self.att_src, self.att_dst):
            nn.init.xavier_uniform_(p)

    def forward(self, x, edge_index):
        n = x.size(0)
        loops = torch.arange(n, device=x.device).expand(2, n)
        src, dst = torch.cat([edge_index, loops], dim=1)

        h = self.lin(x).view(n, self.num_heads, self.out_dim)
        a_src = (h * self.att_src).sum(-1)
        a_dst = (h * self.att_dst).sum(-1)
        e = F.leaky_relu(a_src[src] + a_dst[dst], self.negative_slope)
        alpha = grouped_softmax(e, src, n)
        alpha = F.dropout(alpha, self.dropout, training=self.training)

        out = torch.zeros_like(h)
        out = out.index_add(0, dst, alpha.unsqueeze(-1) * h[src])
        return out.flatten(1) + self.bias
