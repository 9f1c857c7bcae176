import math
from typing import Optional

import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Grouped-query causal attention with one learned sink logit per head.

    The sink takes part in the softmax and has no value, so a head may put a part of its
    mass nowhere; the weights over the tokens sum to less than one.

    Args:
        dim: model width
        num_heads: query heads
        num_kv_heads: key/value heads
        sliding_window: if given, a token sees itself and the `sliding_window - 1` tokens before it
    """

    def __init__(
        self,
        dim: int = 64,
        num_heads: int = 8,
        num_kv_heads: int = 2,
        sliding_window: Optional[int] = None,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.q_mult = num_heads // num_kv_heads
        self.head_dim = dim // num_heads
        self.sliding_window = sliding_window
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.q = nn.Linear(dim, num_heads * self.head_dim)
        self.kv = nn.Linear(dim, 2 * num_kv_heads * self.head_dim)
        self.out = nn.Linear(num_heads * self.head_dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        Q = self.q(x).view(b, n, self.num_kv_heads, self.q_mult, self.head_dim)
        K, V = self.kv(x).view(b, n, 2, self.num_kv_heads, self.head_dim).unbind(2)

        QK = torch.einsum("bqhmd,bkhd->bhmqk", Q, K) / math.sqrt(self.head_dim)

        blocked = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        if self.sliding_window is not None:
            blocked = blocked | torch.ones_like(blocked).tril(-self.sliding_window)
        QK = QK.masked_fill(blocked, float("-inf"))

        S = self.sinks.view(1, self.num_kv_heads, self.q_mult, 1, 1).expand(b, -1, -1, n, 1).to(QK.dtype)
        W = torch.softmax(torch.cat([QK, S], dim=-1), dim=-1)[..., :-1]

        y = torch.einsum("bhmqk,bkhd->bqhmd", W, V)
        return self.out(y.reshape(b, n, -1))
