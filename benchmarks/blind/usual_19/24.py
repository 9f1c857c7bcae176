import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class MaskedCrossAttention(nn.Module):
    """Cross-attention from decoder states to an encoder memory.

    Mask convention (the one of ``torch.nn.MultiheadAttention``, opposite to Hugging Face):
    ``ignore[b, s] = True`` means that memory position ``s`` is padding and is NOT attended to.
    A row whose memory is entirely padding receives a zero context.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, memory_dim: Optional[int] = None):
        super().__init__()
        memory_dim = memory_dim or dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(memory_dim, 2 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, ignore: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        B, T, C = x.shape
        S = memory.size(1)
        q = self.q(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(memory).view(B, S, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        scores = q @ k.mT / math.sqrt(self.head_dim)
        if ignore is not None:
            ignore = ignore.bool()[:, None, None, :]
            scores = scores.masked_fill(ignore, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if ignore is not None:
            weights = weights.masked_fill(ignore, 0.0)

        y = (weights @ v).transpose(1, 2).reshape(B, T, C)
        return self.o(y), weights
