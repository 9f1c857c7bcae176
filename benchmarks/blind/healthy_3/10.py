import math
from typing import List, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def alibi_slopes(n_heads: int) -> List[float]:
    """Geometric slopes of the paper; head counts that are not a power of two borrow from the next one."""

    def power_of_two(n: int) -> List[float]:
        start = 2.0 ** (-8.0 / n)
        return [start ** (i + 1) for i in range(n)]

    if math.log2(n_heads).is_integer():
        return power_of_two(n_heads)
    closest = 2 ** int(math.floor(math.log2(n_heads)))
    extra = power_of_two(2 * closest)[0::2][: n_heads - closest]
    return power_of_two(closest) + extra


class AlibiCausalAttention(nn.Module):
    """Causal self-attention with linear position biases instead of position embeddings."""

    def __init__(self, dim: int = 192, num_heads: int = 6, dropout: float = 0.0, bias: bool = False):
        super().__init__()
        if dim % num_heads:
            raise ValueError("dim must be divisible by num_heads")
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj = nn.Linear(dim, 3 * dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(num_heads)), persistent=False)

    def _bias(self, T: int, pad_mask: Optional[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        pos = torch.arange(T, device=self.slopes.device)
        distance = pos[:, None] - pos[None, :]  # >= 0 for the past
        bias = -self.slopes.float()[:, None, None] * distance.clamp(min=0)
        blocked = (distance < 0)[None, None]
        if pad_mask is not None:
            # a token always sees itself, so that padded rows are not empty
            blocked = (blocked | pad_mask[:, None, None, :]) & (distance != 0)
        return bias[None].masked_fill(blocked, float("-inf")).to(dtype)

    def forward(self, x: torch.Tensor, pad_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Args:
            x: (batch, time, dim)
            pad_mask: (batch, time) bool, True for padding, on either side.
        """
        B, T, D = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=self._bias(T, pad_mask, q.dtype),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out_proj(y.transpose(1, 2).reshape(B, T, D))
