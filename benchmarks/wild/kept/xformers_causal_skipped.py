"""A causal attention without att_mask returns before its causal mask is built, so it is not causal.

facebookresearch/xformers #103 (2021)
https://github.com/facebookresearch/xformers/issues/103
"""
import math
from typing import Optional

import torch
import torch.nn as nn


def scaled_dot_product_attention(q, k, v, att_mask: Optional[torch.Tensor], dropout=None):
    q = q / math.sqrt(k.size(-1))
    att = q @ k.transpose(-2, -1)
    if att_mask is not None:
        att = att.masked_fill(~att_mask, float("-inf"))
    att = torch.softmax(att, dim=-1)
    if dropout is not None:
        att = dropout(att)
    return att @ v


class _ScaledDotProductBase(nn.Module):
    """
    Implementing the Scaled Dot-Product attention proposed in `Attention is all you need`_, Vaswani et al.

    Args:
        dropout: dropout on the attention map
        causal: if True, a position only attends to itself and to previous positions
        seq_len: maximum sequence length, used to size the causal mask
    """

    def __init__(self, dropout: float = 0.0, causal: bool = False, seq_len: Optional[int] = None):
        super().__init__()
        self.attn_drop = nn.Dropout(dropout, inplace=False)
        self.causal = causal
        mask = torch.tril(torch.ones(seq_len, seq_len), diagonal=0).bool() if causal else None
        self.register_buffer("causal_mask", mask)


class _MultiHeadDispatch(nn.Module):
    """Projects, splits the heads, calls the attention and projects back."""

    def __init__(self, dim_model: int, num_heads: int, attention: nn.Module):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(dim_model, 3 * dim_model)
        self.attention = attention
        self.proj = nn.Linear(dim_model, dim_model)

    def forward(self, x: torch.Tensor, att_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """att_mask: optional boolean (seq, seq), True for the pairs which may be attended."""
        B, S, C = x.shape
        q, k, v = self.in_proj(x).view(B, S, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = self.attention(q, k, v, att_mask=att_mask)
        return self.proj(y.transpose(1, 2).reshape(B, S, C))


def broken() -> nn.Module:
    class ScaledDotProduct(_ScaledDotProductBase):
        def forward(self, q, k, v, att_mask: Optional[torch.Tensor] = None):
            if att_mask is not None and self.causal:
                n = q.shape[-2]
                att_mask = att_mask & self.causal_mask[:n, :n]
            return scaled_dot_product_attention(q, k, v, att_mask, dropout=self.attn_drop)

    torch.manual_seed(0)
    return _MultiHeadDispatch(32, 4, ScaledDotProduct(dropout=0.1, causal=True, seq_len=16))


def fixed() -> nn.Module:
    class ScaledDotProduct(_ScaledDotProductBase):
        def forward(self, q, k, v, att_mask: Optional[torch.Tensor] = None):
            if self.causal:
                n = q.shape[-2]
                causal = self.causal_mask[:n, :n]
                att_mask = causal if att_mask is None else att_mask & causal
            return scaled_dot_product_attention(q, k, v, att_mask, dropout=self.attn_drop)

    torch.manual_seed(0)
    return _MultiHeadDispatch(32, 4, ScaledDotProduct(dropout=0.1, causal=True, seq_len=16))


def example():
    g = torch.Generator().manual_seed(11)
    return (torch.randn(2, 12, 32, generator=g),), {}
