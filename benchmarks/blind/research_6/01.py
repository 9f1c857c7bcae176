from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def segment_softmax(scores: Tensor, index: Tensor, num_segments: int) -> Tensor:
    """Softmax of ``scores`` [E, H] inside the groups given by ``index`` [E]."""
    expanded = index.unsqueeze(-1).expand_as(scores)
    peak = scores.new_full((num_segments, scores.size(1)), float("-inf"))
    peak = peak.scatter_reduce(0, expanded, scores.detach(), reduce="amax", include_self=True)
    numer = (scores - peak[index]).exp()
    denom = scores.new_zeros(num_segments, scores.size(1)).index_add(0, index, numer)
    return numer / (denom[index] + 1e-16)


class GraphAttentionConv(nn.Module):
    """Graph attention layer (Velickovic et al., 2018).

    ``edge_index`` is [2, E]; row 0 holds the source and row 1 the target of every
    edge, messages flow source -> target. Each node receives the attention weighted
    mean of its incoming messages. Self loops are added here.
    """

    def __init__(
        self,
        in_dim: int = 32,
        out_dim: int = 32,
        num_heads: int = 4,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        concat: bool = True,
    ):
        super().__init__()
        self.heads = num_heads
        self.head_dim = out_dim // num_heads if concat else out_dim
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.lin = nn.Linear(in_dim, num_heads * self.head_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(num_heads, self.head_dim))
        self.att_dst = nn.Parameter(torch.empty(num_heads, self.head_dim))
        self.bias = nn.Parameter(torch.zeros(num_heads * self.head_dim if concat else out_dim))
        nn.init.xavier_uniform_(self.lin.weight)
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x: Tensor, edge_index: Tensor, num_nodes: Optional[int] = None) -> Tensor:
        n = x.size(0) if num_nodes is None else num_nodes
        loops = torch.arange(n, device=x.device).unsqueeze(0).expand(2, -1)
        src, dst = torch.cat([edge_index, loops], dim=1)

        h = self.lin(x).view(n, self.heads, self.head_dim)
        a_src = (h * self.att_src).sum(-1)
        a_dst = (h * self.att_dst).sum(-1)

        e = F.leaky_relu(a_src[src] + a_dst[dst], self.negative_slope)
        alpha = segment_softmax(e, src, n)
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)

        out = h.new_zeros(n, self.heads, self.head_dim)
        out = out.index_add(0, dst, alpha.unsqueeze(-1) * h[src])
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.bias
