from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class PrefixDecoderAttention(nn.Module):
    """Causal self-attention with support for left- or right-padded batches.

    Args:
        dim: embedding size
        num_heads: number of heads
        dropout: attention dropout

    forward(x, attention_mask): x is (B, T, dim), attention_mask an optional (B, T) tensor with 1 for
    tokens and 0 for padding. The additive bias is built lazily, since all layers and most steps work
    on tensors of one size.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self._bias: Optional[torch.Tensor] = None

    def _attn_bias(self, x: torch.Tensor, attention_mask: Optional[torch.Tensor]) -> torch.Tensor:
        B, T, _ = x.shape
        cached = self._bias
        if (
            cached is not None
            and cached.shape == (B, 1, T, T)
            and cached.dtype == x.dtype
            and cached.device == x.device
        ):
            return cached

        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        visible = visible.expand(B, 1, T, T)
        if attention_mask is not None:
            visible = visible & attention_mask.bool()[:, None, None, :]
        bias = torch.zeros(B, 1, T, T, dtype=x.dtype, device=x.device)
        self._bias = bias.masked_fill(~visible, torch.finfo(x.dtype).min)
        return self._bias

    def forward(self, x: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=self._attn_bias(x, attention_mask),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.proj(y.transpose(1, 2).reshape(B, T, C))
