from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GATv2Layer(nn.Module):
    """GATv2 on an edge list, with optional edge features.

    ``edge_index[0]`` are the senders and ``edge_index[1]`` the receivers; coefficients are normalised over the
    edges that enter a receiver. Loops in the input are dropped and one loop per node is added, with zero edge
    features. The nonlinearity sits *before* the dot product with the attention vector, which is what sets v2 apart.

    Args:
        in_dim: node features.
        out_dim: features per head.
        num_heads: number of heads.
        edge_dim: edge features, if any.
        concat: concatenate the heads, or else average them.
    """

    def __init__(self, in_dim: int = 32, out_dim: int = 16, num_heads: int = 4, edge_dim: Optional[int] = None,
                 concat: bool = True, negative_slope: float = 0.2, dropout: float = 0.0):
        super().__init__()
        self.out_dim, self.num_heads, self.concat = out_dim, num_heads, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        self.lin_l = nn.Linear(in_dim, num_heads * out_dim)
        self.lin_r = nn.Linear(in_dim, num_heads * out_dim)
        self.lin_e = nn.Linear(edge_dim, num_heads * out_dim, bias=False) if edge_dim is not None else None
        self.att = nn.Parameter(torch.empty(num_heads, out_dim))
        nn.init.xavier_uniform_(self.att)
        self.bias = nn.Parameter(torch.zeros(num_heads * out_dim if concat else out_dim))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Optional[Tensor] = None) -> Tensor:
        n = x.size(0)
        keep = edge_index[0] != edge_index[1]
        loop = torch.arange(n, device=x.device)
        send = torch.cat([edge_index[0, keep], loop])
        recv = torch.cat([edge_index[1, keep], loop])

        x_l = self.lin_l(x).view(n, self.num_heads, self.out_dim)
        x_r = self.lin_r(x).view(n, self.num_heads, self.out_dim)
        pre = x_l[send] + x_r[recv]
        if self.lin_e is not None and edge_attr is not None:
            attr = torch.cat([edge_attr[keep], edge_attr.new_zeros(n, edge_attr.size(1))])
            pre = pre + self.lin_e(attr).view(-1, self.num_heads, self.out_dim)
        logit = (F.leaky_relu(pre, self.negative_slope) * self.att).sum(dim=-1)

        # subtracting any constant per receiver leaves the softmax as it is, so the peak needs no gradient
        where = recv.unsqueeze(-1).expand_as(logit)
        peak = torch.full((n, self.num_heads), float("-inf"), device=x.device, dtype=logit.dtype)
        peak = peak.scatter_reduce(0, where, logit.detach(), reduce="amax")
        num = torch.exp(logit - peak[recv])
        den = torch.zeros_like(peak).index_add(0, recv, num)
        alpha = F.dropout(num / den[recv], self.dropout, self.training)

        out = torch.zeros_like(x_l).index_add(0, recv, x_l[send] * alpha.unsqueeze(-1))
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.bias
