import torch
import torch.nn as nn
import torch.nn.functional as F


def scatter_softmax(scores, index, num_nodes):
    """Softmax of ``scores`` [E, H] within the groups given by ``index`` [E]."""
    idx = index.unsqueeze(-1).expand_as(scores)
    top = torch.full((num_nodes, scores.size(1)), float("-inf"), dtype=scores.dtype, device=scores.device)
    top = top.scatter_reduce(0, idx, scores, reduce="amax", include_self=True)
    ex = torch.exp(scores - top.index_select(0, index))
    denom = torch.zeros_like(top).index_add_(0, index, ex)
    return ex / (denom.index_select(0, index) + 1e-16)


class GATLayer(nn.Module):
    """Graph attention (Velickovic et al. 2018) on an edge list.

    Parameters
    ----------
    in_features, out_features : int
    num_heads : int
    concat : bool
        concatenate the heads (hidden layers) or average them (last layer)

    Inputs
    ------
    x : [N, in_features]
    edge_index : LongTensor [2, E]; an edge (s, t) carries a message from s to t.
        Self loops are added here.

    Every node receives a convex combination of its neighbours' features.
    """

    def __init__(self, in_features=16, out_features=8, num_heads=4, concat=True,
                 dropout=0.0, negative_slope=0.2):
        super().__init__()
        self.num_heads = num_heads
        self.out_features = out_features
        self.concat = concat
        self.dropout = dropout

        self.linear_proj = nn.Linear(in_features, num_heads * out_features, bias=False)
        self.a_source = nn.Parameter(torch.empty(1, num_heads, out_features))
        self.a_target = nn.Parameter(torch.empty(1, num_heads, out_features))
        self.bias = nn.Parameter(torch.zeros(num_heads * out_features if concat else out_features))
        self.leaky_relu = nn.LeakyReLU(negative_slope)
        nn.init.xavier_uniform_(self.linear_proj.weight)
        nn.init.xavier_uniform_(self.a_source)
        nn.init.xavier_uniform_(self.a_target)

    def forward(self, x, edge_index):
        N = x.size(0)
        loops = torch.arange(N, device=x.device)
        src = torch.cat([edge_index[0], loops])
        trg = torch.cat([edge_index[1], loops])

        h = F.dropout(x, self.dropout, training=self.training)
        h = self.linear_proj(h).view(N, self.num_heads, self.out_features)

        s_src = (h * self.a_source).sum(dim=-1)
        s_trg = (h * self.a_target).sum(dim=-1)

        e = self.leaky_relu(s_src[src] + s_trg[trg])
        alpha = scatter_softmax(e, src, N)
        alpha = F.dropout(alpha, self.dropout, training=self.training)

        messages = h[src] * alpha.unsqueeze(-1)
        out = torch.zeros_like(h).index_add_(0, trg, messages)

        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.bias
