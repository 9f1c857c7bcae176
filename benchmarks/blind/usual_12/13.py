from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

KVCache = Tuple[torch.Tensor, torch.Tensor]


class DecoderAttention(nn.Module):
    """Causal attention for generation.

    Call it once with the prompt and then with the new tokens and the cache that it returned:

        y, cache = attn(prompt)
        y, cache = attn(next_token, cache)
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x: torch.Tensor, cache: Optional[KVCache] = None) -> Tuple[torch.Tensor, KVCache]:
        q, k, v = map(self._heads, self.wqkv(x).chunk(3, dim=-1))

        if cache is not None:
            past_k, past_v = cache
            k = torch.cat((past_k, k), dim=-2)
            v = torch.cat((past_v, v), dim=-2)

        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        y = y.transpose(1, 2).flatten(-2)
        return self.wo(y), (k, v)
