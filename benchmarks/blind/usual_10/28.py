import math
from typing import Optional

import torch
from torch import nn


class DecoderAttention(nn.Module):
    """Self-attention of a decoder.

    Args:
        embed_dim: width of the model
        num_heads: number of heads

    Inputs:
        x: (batch, length, embed_dim)
        padding: (batch, length) bool, True at padding
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, embed_dim * 3)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self._mask: Optional[torch.Tensor] = None

    def _attention_mask(self, x: torch.Tensor, padding: Optional[torch.Tensor]) -> torch.Tensor:
        batch, length, _ = x.shape
        if (
            self._mask is None
            or self._mask.device != x.device
            or self._mask.shape[0] != batch
            or self._mask.shape[-1] != length
        ):
            future = torch.triu(torch.ones(length, length, dtype=torch.bool, device=x.device), diagonal=1)
            hidden = future.expand(batch, 1, length, length)
            if padding is not None:
                hidden = hidden | padding[:, None, None, :]
            self._mask = torch.zeros(hidden.shape, device=x.device).masked_fill(hidden, -1e4)
        return self._mask

    def forward(self, x: torch.Tensor, padding: Optional[torch.Tensor] = None) -> torch.Tensor:
        batch, length, dim = x.shape
        qkv = self.in_proj(x).view(batch, length, self.num_heads, 3 * self.head_dim)
        q, k, v = qkv.transpose(1, 2).chunk(3, dim=-1)

        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        scores = scores + self._attention_mask(x, padding).to(scores.dtype)
        attn = self.dropout(torch.softmax(scores, dim=-1))
        out = torch.matmul(attn, v).transpose(1, 2).reshape(batch, length, dim)
        return self.out_proj(out)
