"""The edge softmax is grouped by source node although messages are summed at the target node.

pyg-team/pytorch_geometric #224 (2019)
https://github.com/pyg-team/pytorch_geometric/issues/224
"""
import torch
import torch.nn.functional as F
from torch import nn


def softmax(src, index, num_nodes):
    r"""Computes a sparsely evaluated softmax. Given a value tensor :attr:`src`, this function first groups the values
    along the first dimension based on the indices specified in :attr:`index`, and then proceeds to compute the softmax
    individually for each group.
    """
    zeros = torch.zeros(num_nodes, *src.shape[1:], dtype=src.dtype, device=src.device)
    src_max = zeros.scatter_reduce(0, index[:, None].expand_as(src), src.detach(), 'amax', include_self=False)
    out = (src - src_max[index]).exp()
    out_sum = zeros.index_add(0, index, out)
    return out / (out_sum[index] + 1e-16)


class _GATConvBase(nn.Module):
    r"""The graph attentional operator from the `"Graph Attention Networks" <https://arxiv.org/abs/1710.10903>`_ paper.
    Node :math:`i` aggregates its in-neighbours with coefficients

    .. math::
        \alpha_{i,j} = \mathrm{softmax}_{j \in \mathcal{N}(i) \cup \{ i \}}
        \left( \mathrm{LeakyReLU}(\mathbf{a}^{\top} [\mathbf{\Theta}\mathbf{x}_i \, \Vert \, \mathbf{\Theta}\mathbf{x}_j]) \right)

    Args:
        in_channels (int): Size of each input sample.
        out_channels (int): Size of each output sample.
        heads (int, optional): Number of multi-head-attentions.
        negative_slope (float, optional): LeakyReLU angle of the negative slope.
    """

    def __init__(self, in_channels, out_channels, heads=1, negative_slope=0.2, dropout=0):
        super().__init__()
        self.heads, self.out_channels = heads, out_channels
        self.negative_slope, self.dropout = negative_slope, dropout
        self.weight = nn.Parameter(torch.randn(in_channels, heads * out_channels) / in_channels ** 0.5)
        self.att = nn.Parameter(torch.randn(1, heads, 2 * out_channels) / out_channels ** 0.5)
        self.bias = nn.Parameter(torch.zeros(heads * out_channels))


def broken() -> nn.Module:
    class GATConv(_GATConvBase):
        def forward(self, x, edge_index):
            """edge_index: (2, num_edges), messages flow from edge_index[0] to edge_index[1]."""
            loop = torch.arange(x.size(0), device=x.device)
            edge_index = torch.cat([edge_index, torch.stack([loop, loop])], dim=1)
            x = torch.mm(x, self.weight).view(-1, self.heads, self.out_channels)
            x_i, x_j = x[edge_index[1]], x[edge_index[0]]
            alpha = (torch.cat([x_i, x_j], dim=-1) * self.att).sum(dim=-1)
            alpha = F.leaky_relu(alpha, self.negative_slope)
            alpha = softmax(alpha, edge_index[0], num_nodes=x.size(0))
            alpha = F.dropout(alpha, p=self.dropout, training=self.training)
            out = torch.zeros_like(x).index_add(0, edge_index[1], x_j * alpha.unsqueeze(-1))
            return out.view(-1, self.heads * self.out_channels) + self.bias

    torch.manual_seed(0)
    return GATConv(16, 8, heads=4)


def fixed() -> nn.Module:
    class GATConv(_GATConvBase):
        def forward(self, x, edge_index):
            """edge_index: (2, num_edges), messages flow from edge_index[0] to edge_index[1]."""
            loop = torch.arange(x.size(0), device=x.device)
            edge_index = torch.cat([edge_index, torch.stack([loop, loop])], dim=1)
            x = torch.mm(x, self.weight).view(-1, self.heads, self.out_channels)
            x_i, x_j = x[edge_index[1]], x[edge_index[0]]
            alpha = (torch.cat([x_i, x_j], dim=-1) * self.att).sum(dim=-1)
            alpha = F.leaky_relu(alpha, self.negative_slope)
            alpha = softmax(alpha, edge_index[1], num_nodes=x.size(0))
            alpha = F.dropout(alpha, p=self.dropout, training=self.training)
            out = torch.zeros_like(x).index_add(0, edge_index[1], x_j * alpha.unsqueeze(-1))
            return out.view(-1, self.heads * self.out_channels) + self.bias

    torch.manual_seed(0)
    return GATConv(16, 8, heads=4)


def example():
    g = torch.Generator().manual_seed(38)
    x = torch.randn(8, 16, generator=g)
    edge_index = torch.tensor([[0, 1, 2, 3, 3, 4, 5, 6, 7, 7, 2], [1, 2, 0, 0, 4, 5, 3, 2, 6, 1, 5]])
    return (x, edge_index), {}
