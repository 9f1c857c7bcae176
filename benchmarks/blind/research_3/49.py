from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

KV = Tuple[torch.Tensor, torch.Tensor]


class CachedSelfAttention(nn.Module):
    """Decoder self attention.

    Without ``layer_past`` the whole prompt is processed; with it, ``x`` holds the
    tokens that follow the cached ones. ``use_cache`` returns the new cache as well.
    Positions are added to the embeddings by the model.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, attn_pdrop: float = 0.1,
                 resid_pdrop: float = 0.1):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.attn_pdrop = attn_pdrop
        self.c_attn = nn.Linear(embed_dim, 3 * embed_dim)
        self.c_proj = nn.Linear(embed_dim, embed_dim)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def _split_heads(self, t: torch.Tensor) -> torch.Tensor:
        return t.view(t.size(0), t.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x: torch.Tensor, layer_past: Optional[KV] = None, use_cache: bool = False):
        q, k, v = self.c_attn(x).split(self.embed_dim, dim=2)
        q, k, v = self._split_heads(q), self._split_heads(k), self._split_heads(v)

        if layer_past is not None:
            past_k, past_v = layer_past
            k = torch.cat((past_k, k), dim=-2)
            v = torch.cat((past_v, v), dim=-2)
        present = (k, v) if use_cache else None

        y = F.scaled_dot_product_attention(
            q, k, v,
            dropout_p=self.attn_pdrop if self.training else 0.0,
            is_causal=True,
        )
        y = y.transpose(1, 2).contiguous().view(x.size(0), x.size(1), self.embed_dim)
        y = self.resid_dropout(self.c_proj(y))
        return (y, present) if use_cache else y
