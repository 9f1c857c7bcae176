import torch
import torch.nn as nn
import torch.nn.functional as F


def segment_softmax(logits, index, num_segments):
    """Softmax of ``logits`` [E, H] within the groups given by ``index`` [E]."""
    idx = index.unsqueeze(-1).expand_as(logits)
    top = logits.new_full((num_segments, logits.size(1)), float("-inf"))
    top = top.scatter_reduce(0, idx, logits, reduce="amax", include_self=True)
    ex = (logits - top.gather(0, idx)).exp()
    denom = torch.zeros_like(top).index_add(0, index, ex)
    return ex / denom.gather(0, idx)


class GATv2Layer(nn.Module):
    """How attentive are graph attention networks (Brody et al.).

    ``edge_index`` is [2, E] with row 0 the sending and row 1 the receiving node. There is no 1/sqrt(d): the
    score is an MLP, the non-linearity sits in front of the attention vector. Nodes without incoming edges
    only get the self loop that is added here.
    """

    def __init__(self, in_dim=16, out_dim=8, heads=4, concat=True, negative_slope=0.2, dropout=0.0):
        super().__init__()
        self.heads, self.out_dim, self.concat = heads, out_dim, concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.lin_src = nn.Linear(in_dim, heads * out_dim)
        self.lin_dst = nn.Linear(in_dim, heads * out_dim)
        self.att = nn.Parameter(torch.empty(heads, out_dim))
        self.bias = nn.Parameter(torch.zeros(heads * out_dim if concat else out_dim))
        nn.init.xavier_uniform_(self.att)

    def forward(self, x, edge_index):
        n = x.size(0)
        keep = edge_index[0] != edge_index[1]
        loops = torch.arange(n, device=x.device).expand(2, n)
        edge_index = torch.cat([edge_index[:, keep], loops], dim=1)
        src, dst = edge_index[0], edge_index[1]

        xs = self.lin_src(x).view(n, self.heads, self.out_dim)
        xd = self.lin_dst(x).view(n, self.heads, self.out_dim)
        e = F.leaky_relu(xs[src] + xd[dst], self.negative_slope)
        logits = (e * self.att).sum(-1)
        alpha = segment_softmax(logits, dst, n)
        alpha = F.dropout(alpha, self.dropout, training=self.training)

        out = x.new_zeros(n, self.heads, self.out_dim).index_add(0, dst, alpha.unsqueeze(-1) * xs[src])
        out = out.flatten(1) if self.concat else out.mean(1)
        return out + self.bias
