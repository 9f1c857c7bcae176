import math
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def multihead_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    num_heads: int,
    in_proj_weight: torch.Tensor,
    in_proj_bias: Optional[torch.Tensor],
    out_proj_weight: torch.Tensor,
    out_proj_bias: Optional[torch.Tensor],
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> torch.Tensor:
    """Functional multi-head scaled dot-product attention, batch first.

    Numerically equivalent to ``torch.nn.MultiheadAttention`` with the same packed weights.

    Args:
        query: (B, T, E).
        key, value: (B, S, E).
        in_proj_weight: (3E, E), the q, k and v projections stacked in this order.
        attn_mask: boolean, True where attention is allowed, broadcastable to (B, H, T, S).
    """
    bsz, tgt_len, embed_dim = query.shape
    src_len = key.shape[1]
    head_dim = embed_dim // num_heads
    scaling = head_dim ** -0.5

    w_q, w_k, w_v = in_proj_weight.chunk(3)
    if in_proj_bias is not None:
        b_q, b_k, b_v = in_proj_bias.chunk(3)
    else:
        b_q = b_k = b_v = None

    q = F.linear(query, w_q, b_q) * scaling
    k = F.linear(key, w_k, b_k)
    v = F.linear(value, w_v, b_v)

    q = q.view(bsz, tgt_len, num_heads, head_dim).transpose(1, 2)
    k = k.view(bsz, src_len, num_heads, head_dim).transpose(1, 2)
    v = v.view(bsz, src_len, num_heads, head_dim).transpose(1, 2)

    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal
    )
    out = out.transpose(1, 2).reshape(bsz, tgt_len, embed_dim)
    return F.linear(out, out_proj_weight, out_proj_bias)


class FastMultiheadAttention(nn.Module):
    """Drop-in replacement of ``nn.MultiheadAttention(batch_first=True)`` on fused kernels."""

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: torch.Tensor,
        key: Optional[torch.Tensor] = None,
        value: Optional[torch.Tensor] = None,
        attn_mask: Optional[torch.Tensor] = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        key = query if key is None else key
        value = key if value is None else value
        return multihead_attention(
            query, key, value, self.num_heads,
            self.in_proj_weight, self.in_proj_bias,
            self.out_proj.weight, self.out_proj.bias,
            attn_mask=attn_mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
        )
