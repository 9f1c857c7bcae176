import torch
import torch.nn as nn
import torch.nn.functional as F


def segment_softmax(score, index, num_segments):
    """Softmax of ``score`` [E, H] inside the groups given by ``index`` [E]."""
    idx = index.unsqueeze(-1).expand_as(score)
    top = score.new_full((num_segments, score.size(1)), float("-inf"))
    top = top.scatter_reduce(0, idx, score, reduce="amax", include_self=True)
    ex = (score - top[index]).exp()
    total = torch.zeros_like(top).scatter_add(0, idx, ex)
    return ex / (total[index] + 1e-16)


class GATLayer(nn.Module):
    """Graph attention over directed edges ``edge_index`` = (source, target).

    Messages flow from source to target; every node also receives a self loop.
    """

    def __init__(self, in_dim=32, out_dim=32, heads=4, dropout=0.0, negative_slope=0.2, concat=True):
        super().__init__()
        self.heads, self.out_dim, self.concat = heads, out_dim, concat
        self.negative_slope = negative_slope
        self.lin = nn.Linear(in_dim, heads * out_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_dim))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_dim))
        self.bias = nn.Parameter(torch.zeros(heads * out_dim if concat else out_dim))
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x, edge_index):
        N = x.size(0)
        loops = torch.arange(N, device=x.device)
        keep = edge_index[0] != edge_index[1]
        src = torch.cat([edge_index[0][keep], loops])
        dst = torch.cat([edge_index[1][keep], loops])

        h = self.lin(x).view(N, self.heads, self.out_dim)
        a_src = (h * self.att_src).sum(-1)
        a_dst = (h * self.att_dst).sum(-1)

        e = F.leaky_relu(a_src[src] + a_dst[dst], self.negative_slope)
        alpha = segment_softmax(e, src, N)
        alpha = self.dropout(alpha)

        out = torch.zeros_like(h).index_add(0, dst, h[src] * alpha.unsqueeze(-1))
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.bias
