from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def segment_softmax(src: torch.Tensor, index: torch.Tensor, num_segments: int) -> torch.Tensor:
    """Softmax over all entries of ``src`` that share the same ``index`` (first dimension)."""
    idx = index.unsqueeze(-1).expand_as(src)
    peak = src.new_full((num_segments, src.size(-1)), float("-inf"))
    peak = peak.scatter_reduce(0, idx, src.detach(), reduce="amax", include_self=True)
    ex = (src - peak[index]).exp()
    total = src.new_zeros(num_segments, src.size(-1)).index_add(0, index, ex)
    return ex / total[index].clamp_min(1e-16)


class GATv2Conv(nn.Module):
    """Graph attention with dynamic attention ("How attentive are graph attention networks?").

    ``edge_index`` is ``[2, E]`` with row 0 the source and row 1 the target of the messages.  The
    logits are not divided by sqrt(d): they come from a one-layer MLP, not from a dot product.
    Self loops are added here, so that nodes without incoming edges keep their own features.
    """

    def __init__(self, in_channels: int = 32, out_channels: int = 16, heads: int = 4, concat: bool = True,
                 negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True):
        super().__init__()
        self.heads = heads
        self.out_channels = out_channels
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.lin_src = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.lin_dst = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att = nn.Parameter(torch.empty(heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(heads * out_channels if concat else out_channels))
        nn.init.xavier_uniform_(self.att)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_bias: Optional[torch.Tensor] = None):
        n = x.size(0)
        src, dst = edge_index
        if self.add_self_loops:
            keep = src != dst
            loops = torch.arange(n, device=x.device)
            src = torch.cat([src[keep], loops])
            dst = torch.cat([dst[keep], loops])
            if edge_bias is not None:
                edge_bias = torch.cat([edge_bias[keep], edge_bias.new_zeros(n, self.heads)])

        x_src = self.lin_src(x).view(n, self.heads, self.out_channels)
        x_dst = self.lin_dst(x).view(n, self.heads, self.out_channels)

        e = F.leaky_relu(x_src[src] + x_dst[dst], self.negative_slope)
        logits = (e * self.att).sum(-1)
        if edge_bias is not None:
            logits = logits + edge_bias
        alpha = segment_softmax(logits, dst, n)
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)

        out = x.new_zeros(n, self.heads, self.out_channels)
        out = out.index_add(0, dst, alpha.unsqueeze(-1) * x_src[src])
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.bias
