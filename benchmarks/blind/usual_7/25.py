from typing import Optional

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Causal sigmoid attention (Ramapuram et al., 2024).

    Each weight is an independent sigmoid, nothing is normalised along the row. The bias of -log(n), n being the
    number of keys that the query can see, keeps the sum of a row near one at initialisation.
    """

    def __init__(self, dim: int = 64, heads: int = 4, qk_norm: bool = True):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()

    def forward(self, x: torch.Tensor, key_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """key_mask: (B, T) bool, True for real tokens."""
        B, T, C = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)

        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()[None, None]
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]
        n_visible = visible.sum(-1, keepdim=True).clamp(min=1)

        logits = q @ k.transpose(-1, -2) * self.head_dim ** -0.5
        logits = logits - torch.log(n_visible.to(logits.dtype))
        weights = torch.sigmoid(logits) * visible.to(logits.dtype)

        y = (weights @ v).transpose(1, 2).reshape(B, T, C)
        return self.out_proj(y)
