from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    """Multi-head self-attention on top of F.scaled_dot_product_attention.

    Args:
        embed_dim: model width
        num_heads: number of heads
        dropout: dropout on the attention weights
        causal: whether a token may only look to the left
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.1, causal: bool = False):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.causal = causal
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: torch.Tensor, padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (B, L, E); padding_mask: bool (B, L), True for real tokens."""
        B, L, E = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, L, self.num_heads, self.head_dim).transpose(1, 2)

        attn_mask = None
        if padding_mask is not None:
            attn_mask = padding_mask[:, None, None, :]
            if self.causal:
                tri = torch.ones(L, L, dtype=torch.bool, device=x.device).tril()
                attn_mask = attn_mask & tri

        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attn_mask,
            dropout_p=self.dropout,
            is_causal=self.causal and attn_mask is None,
        )
        return self.out_proj(out.transpose(1, 2).reshape(B, L, E))
