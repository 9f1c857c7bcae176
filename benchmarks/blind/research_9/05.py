import torch
import torch.nn as nn
import torch.nn.functional as F


def segment_softmax(logits, index, num_segments):
    """Softmax of ``logits`` [E, H] over the entries that share the same ``index`` [E]."""
    h = logits.size(1)
    idx = index.unsqueeze(-1).expand(-1, h)
    peak = torch.full((num_segments, h), float("-inf"), dtype=logits.dtype, device=logits.device)
    peak = peak.scatter_reduce(0, idx, logits, reduce="amax", include_self=True)
    num = (logits - peak.gather(0, idx)).exp()
    den = torch.zeros(num_segments, h, dtype=logits.dtype, device=logits.device).scatter_add(0, idx, num)
    return num / (den.gather(0, idx) + 1e-16)


class GATLayer(nn.Module):
    r"""Graph attention layer, sparse version.

    .. math::
        x'_i = \sum_{j \in N(i) \cup \{i\}} \alpha_{ij} W x_j

    ``edge_index`` is ``[2, E]``: row 0 holds the sources, row 1 the targets of the messages.
    """

    def __init__(self, in_channels=16, out_channels=8, heads=4, concat=True, negative_slope=0.2, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.out_channels = out_channels
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(heads * out_channels if concat else out_channels))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.lin.weight)
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x, edge_index):
        n = x.size(0)
        loops = torch.arange(n, device=x.device)
        src = torch.cat([edge_index[0], loops])
        dst = torch.cat([edge_index[1], loops])

        z = self.lin(x).view(n, self.heads, self.out_channels)
        a_src = (z * self.att_src).sum(-1)
        a_dst = (z * self.att_dst).sum(-1)
        e = F.leaky_relu(a_src[src] + a_dst[dst], self.negative_slope)
        alpha = segment_softmax(e, src, n)
        alpha = F.dropout(alpha, self.dropout, self.training)

        out = torch.zeros_like(z).index_add(0, dst, z[src] * alpha.unsqueeze(-1))
        out = out.flatten(1) if self.concat else out.mean(1)
        return out + self.bias
