import math
from typing import Optional

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        self.d = dim // heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Optional[Tensor] = None, causal: bool = False) -> Tensor:
        context = x if context is None else context
        b, n, c = x.shape
        m = context.shape[1]
        q = self.to_q(x).view(b, n, self.heads, self.d).transpose(1, 2)
        k = self.to_k(context).view(b, m, self.heads, self.d).transpose(1, 2)
        v = self.to_v(context).view(b, m, self.heads, self.d).transpose(1, 2)
        s = q @ k.transpose(-1, -2) / math.sqrt(self.d)
        if causal:
            s = s.masked_fill(torch.ones(n, m, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        y = self.drop(s.softmax(-1)) @ v
        return self.to_out(y.transpose(1, 2).reshape(b, n, c))


class TranslationDecoderLayer(nn.Module):
    """Pre-norm decoder layer: causal self-attention, attention over the encoder output, feed-forward.

    x: (batch, tgt_len, dim), memory: (batch, src_len, dim)
    """

    def __init__(self, dim: int = 64, heads: int = 4, ff_mult: int = 4, dropout: float = 0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.self_attn = Attention(dim, heads, dropout)
        self.src_attn = Attention(dim, heads, dropout)
        self.ff = nn.Sequential(
            nn.Linear(dim, ff_mult * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ff_mult * dim, dim)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.drop(self.self_attn(self.norm1(x), causal=True))
        x = x + self.drop(self.src_attn(self.norm2(x)))
        x = x + self.drop(self.ff(self.norm3(x)))
        return x
