from typing import Optional

import torch
from torch import nn


class SigmoidAttention(nn.Module):
    """Self-attention with an elementwise sigmoid instead of the softmax (Ramapuram et al., 2024).

    The weights of a row are independent and do not sum to one. The offset ``-log(n)``, with n the
    number of keys that a row can see, brings the row sums to the order of one at initialisation.

    Args:
        pad: optional (batch, length) bool tensor, True where the token is padding.
    """

    def __init__(self, dim: int = 64, heads: int = 4, causal: bool = False):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm_q = nn.LayerNorm(dim // heads)
        self.norm_k = nn.LayerNorm(dim // heads)
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor, pad: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = self.norm_q(q), self.norm_k(k)

        blocked = torch.zeros(b, 1, n, n, dtype=torch.bool, device=x.device)
        if self.causal:
            blocked = blocked | torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        if pad is not None:
            blocked = blocked | pad[:, None, None, :]

        visible = (~blocked).sum(dim=-1, keepdim=True).clamp(min=1).to(x.dtype)
        logits = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 - visible.log()
        weights = logits.sigmoid().masked_fill(blocked, 0.0)
        y = weights @ v
        return self.out(y.transpose(1, 2).reshape(b, n, c))
