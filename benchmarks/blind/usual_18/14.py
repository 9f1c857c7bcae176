from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

KVCache = Tuple[torch.Tensor, torch.Tensor]


class CachedCausalAttention(nn.Module):
    """Decoder self-attention for training and for incremental generation.

    Args:
        embed_dim: model width
        num_heads: number of heads
        dropout: attention dropout (training only)

    ``forward`` returns ``(output, past)``. Pass ``past`` back in together with the next token(s) to
    continue a sequence without recomputing its prefix.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        return x.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x: torch.Tensor, past: Optional[KVCache] = None) -> Tuple[torch.Tensor, KVCache]:
        b, t, c = x.shape
        q = self._split(self.q_proj(x))
        k = self._split(self.k_proj(x))
        v = self._split(self.v_proj(x))

        if past is not None:
            past_k, past_v = past
            k = torch.cat([past_k, k], dim=2)
            v = torch.cat([past_v, v], dim=2)
        present = (k, v)

        y = F.scaled_dot_product_attention(
            q, k, v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        y = y.transpose(1, 2).reshape(b, t, c)
        return self.out_proj(y), present
