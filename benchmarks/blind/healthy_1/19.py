import torch
from torch import nn, Tensor
import torch.nn.functional as F


def segment_softmax(src: Tensor, index: Tensor, num_nodes: int) -> Tensor:
    """Softmax of ``src`` (E, H) over all rows that share the same ``index`` (E,)."""
    index_2d = index[:, None].expand_as(src)
    src_max = src.new_full((num_nodes, src.size(1)), float("-inf"))
    src_max = src_max.scatter_reduce(0, index_2d, src.detach(), reduce="amax", include_self=True)
    out = (src - src_max[index]).exp()
    out_sum = out.new_zeros(num_nodes, src.size(1)).index_add(0, index, out)
    return out / out_sum[index]


class GATv2Conv(nn.Module):
    r"""GATv2 operator on a ``(2, E)`` edge index ("How Attentive are Graph Attention Networks?").

    ``edge_index[0]`` are the source nodes :math:`j`, ``edge_index[1]`` the target nodes :math:`i`:

    .. math::
        x'_i = W_r x_i + \sum_{j \in N(i)} \alpha_{ij} W_s x_j, \quad
        \alpha_{ij} = \mathrm{softmax}_j\; a^T \mathrm{LeakyReLU}(W_s x_j + W_t x_i + W_e e_{ij})

    No self loops are added, the root term :math:`W_r x_i` takes their place. Nodes without incoming
    edges only get the root term.

    Args:
        in_channels (int): Size of each input node feature.
        out_channels (int): Size of each output feature per head.
        heads (int): Number of heads.
        concat (bool): Average the heads instead of concatenating when ``False``.
        negative_slope (float): LeakyReLU angle.
        dropout (float): Dropout on the normalised coefficients.
        edge_dim (int, optional): Edge feature size, if there are any.
        share_weights (bool): Use the same matrix for source and target.
    """

    def __init__(self, in_channels=16, out_channels=8, heads=4, concat=True, negative_slope=0.2,
                 dropout=0.0, edge_dim=None, share_weights=False):
        super().__init__()
        self.heads = heads
        self.out_channels = out_channels
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        total = heads * out_channels if concat else out_channels

        self.lin_l = nn.Linear(in_channels, heads * out_channels)
        self.lin_r = self.lin_l if share_weights else nn.Linear(in_channels, heads * out_channels)
        self.lin_edge = nn.Linear(edge_dim, heads * out_channels, bias=False) if edge_dim is not None else None
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.res = nn.Linear(in_channels, total, bias=False)
        self.bias = nn.Parameter(torch.zeros(total))
        nn.init.xavier_uniform_(self.att)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor = None) -> Tensor:
        num_nodes = x.size(0)
        src, dst = edge_index[0], edge_index[1]
        x_l = self.lin_l(x).view(-1, self.heads, self.out_channels)
        x_r = self.lin_r(x).view(-1, self.heads, self.out_channels)

        x_j = x_l[src]
        hidden = x_j + x_r[dst]
        if self.lin_edge is not None:
            assert edge_attr is not None, "edge_dim was given, edge_attr is required"
            hidden = hidden + self.lin_edge(edge_attr).view(-1, self.heads, self.out_channels)
        hidden = F.leaky_relu(hidden, self.negative_slope)

        # the nonlinearity comes before the dot product: this is what makes it v2
        logits = (hidden * self.att).sum(dim=-1)
        alpha = segment_softmax(logits, dst, num_nodes)
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)

        messages = x_j * alpha.unsqueeze(-1)
        out = messages.new_zeros(num_nodes, self.heads, self.out_channels).index_add(0, dst, messages)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.res(x) + self.bias
