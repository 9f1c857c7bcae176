import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def multi_head_attention(
    query: torch.Tensor,
    memory: torch.Tensor,
    in_weight: torch.Tensor,
    in_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    num_heads: int,
    keep: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
):
    """
    Softmax attention of every query over the keys that it may see.

    query: (B, L, E), memory: (B, S, E)
    keep: (B, L, S) or (B, 1, S), nonzero where a query may look at a key
    """
    B, L, E = query.shape
    S = memory.shape[1]
    d = E // num_heads

    w_q, w_k, w_v = in_weight.chunk(3)
    b_q, b_k, b_v = in_bias.chunk(3)
    q = F.linear(query, w_q, b_q).view(B, L, num_heads, d).transpose(1, 2)
    k = F.linear(memory, w_k, b_k).view(B, S, num_heads, d).transpose(1, 2)
    v = F.linear(memory, w_v, b_v).view(B, S, num_heads, d).transpose(1, 2)

    scores = q @ k.transpose(-2, -1) / math.sqrt(d)
    probs = F.softmax(scores, dim=-1)
    if keep is not None:
        probs = probs * keep.unsqueeze(1).to(probs.dtype)
    if dropout_p > 0.0:
        probs = F.dropout(probs, dropout_p)

    out = (probs @ v).transpose(1, 2).reshape(B, L, E)
    return F.linear(out, out_weight, out_bias), probs


class FunctionalMHA(nn.Module):
    """Holds the weights for ``multi_head_attention``."""

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_weight = nn.Parameter(torch.empty(embed_dim, embed_dim))
        self.out_bias = nn.Parameter(torch.zeros(embed_dim))
        nn.init.xavier_uniform_(self.in_weight)
        nn.init.xavier_uniform_(self.out_weight)

    def forward(self, query, memory=None, keep=None):
        return multi_head_attention(
            query,
            query if memory is None else memory,
            self.in_weight,
            self.in_bias,
            self.out_weight,
            self.out_bias,
            self.num_heads,
            keep=keep,
            dropout_p=self.dropout if self.training else 0.0,
        )
