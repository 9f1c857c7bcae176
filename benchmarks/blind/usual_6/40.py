import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    in_proj_weight: Tensor,
    in_proj_bias: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    training: bool = True,
) -> Tensor:
    """Functional multi-head attention, batch first.

    ``attn_mask`` is boolean with True for allowed pairs, or float and added to the scores.
    """
    bsz, tgt_len, embed_dim = query.shape
    src_len = key.size(1)
    head_dim = embed_dim // num_heads

    w_q, w_k, w_v = in_proj_weight.chunk(3, dim=0)
    b_q, b_k, b_v = in_proj_bias.chunk(3, dim=0)
    q = F.linear(query, w_q, b_q)
    k = F.linear(key, w_k, b_k)
    v = F.linear(value, w_v, b_v)

    q = q * (1.0 / math.sqrt(head_dim))
    q = q.view(bsz, tgt_len, num_heads, head_dim).transpose(1, 2)
    k = k.view(bsz, src_len, num_heads, head_dim).transpose(1, 2)
    v = v.view(bsz, src_len, num_heads, head_dim).transpose(1, 2)

    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, dropout_p=dropout_p if training else 0.0
    )
    out = out.transpose(1, 2).reshape(bsz, tgt_len, embed_dim)
    return F.linear(out, out_proj_weight, out_proj_bias)


class FunctionalMultiheadAttention(nn.Module):
    """Scaled dot-product multi-head attention; holds the weights for the function above."""

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        assert embed_dim % num_heads == 0
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, query: Tensor, key: Optional[Tensor] = None, value: Optional[Tensor] = None,
                attn_mask: Optional[Tensor] = None) -> Tensor:
        key = query if key is None else key
        value = key if value is None else value
        return multi_head_attention_forward(
            query, key, value, self.num_heads,
            self.in_proj_weight, self.in_proj_bias,
            self.out_proj.weight, self.out_proj.bias,
            attn_mask=attn_mask, dropout_p=self.dropout, training=self.training,
        )
