import torch
import torch.nn as nn
import torch.nn.functional as F


class GATLayer(nn.Module):
    r"""Graph attention layer on a sparse ``edge_index``.

    ``edge_index[0]`` holds the source nodes ``j`` and ``edge_index[1]`` the target nodes ``i``;
    messages flow from source to target:

    .. math::
        h_i' = \sum_{j \in N(i)} \alpha_{ij} W h_j

    Args:
        in_channels (int): size of the input features.
        out_channels (int): size of the output features per head.
        heads (int): number of heads, their outputs are concatenated.
    """

    def __init__(self, in_channels=32, out_channels=16, heads=4, negative_slope=0.2, dropout=0.0,
                 add_self_loops=True, bias=True):
        super().__init__()
        self.heads = heads
        self.out_channels = out_channels
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.add_self_loops = add_self_loops

        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(heads * out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.lin.weight)
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def edge_softmax(self, logits, index, num_nodes):
        expanded = index[:, None].expand_as(logits)
        peak = logits.new_full((num_nodes, self.heads), float("-inf"))
        peak = peak.scatter_reduce(0, expanded, logits, reduce="amax", include_self=True)
        out = (logits - peak[index]).exp()
        total = torch.zeros_like(peak).scatter_add(0, expanded, out)
        return out / (total[index] + 1e-16)

    def forward(self, x, edge_index):
        N = x.size(0)
        if self.add_self_loops:
            edge_index = edge_index[:, edge_index[0] != edge_index[1]]
            loop = torch.arange(N, device=x.device).expand(2, -1)
            edge_index = torch.cat([edge_index, loop], dim=1)
        src, dst = edge_index

        h = self.lin(x).view(N, self.heads, self.out_channels)
        alpha_src = (h * self.att_src).sum(-1)
        alpha_dst = (h * self.att_dst).sum(-1)

        alpha = F.leaky_relu(alpha_src[src] + alpha_dst[dst], self.negative_slope)
        alpha = self.edge_softmax(alpha, src, N)
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)

        out = torch.zeros_like(h).index_add(0, dst, alpha.unsqueeze(-1) * h[src])
        out = out.reshape(N, self.heads * self.out_channels)
        if self.bias is not None:
            out = out + self.bias
        return out
