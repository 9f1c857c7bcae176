"""Sigmoid attention, after "Theory, Analysis, and Best Practices for Sigmoid Self-Attention"."""
import math
from typing import Optional

import torch
from torch import Tensor, nn


class SigmoidAttention(nn.Module):
    """Attention with an elementwise sigmoid instead of a softmax over keys.

    Every logit is shifted by ``-log(n)``, with ``n`` the number of keys the query may see, so
    that the weights of a row sum to about one at initialisation. Rows are *not* normalised.

    Args:
        dim: model width.
        num_heads: number of heads.
        causal: let position ``i`` only see positions ``<= i``.
        dropout: dropout probability on the attention weights.
    """

    def __init__(self, dim: int = 256, num_heads: int = 8, causal: bool = False, dropout: float = 0.0):
        super().__init__()
        if dim % num_heads:
            raise ValueError("dim must be divisible by num_heads")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.norm_out = nn.LayerNorm(dim)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, key_mask: Optional[Tensor] = None) -> Tensor:
        """``x``: (b, n, dim). ``key_mask``: (b, n) bool, True for real tokens."""
        b, n, d = x.shape
        q, k, v = (
            t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        visible = torch.ones(1, 1, n, n, dtype=torch.bool, device=x.device)
        if self.causal:
            visible = visible.tril()
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :].bool()

        logits = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(self.head_dim)
        count = visible.sum(dim=-1, keepdim=True).clamp(min=1)
        weights = torch.sigmoid(logits - torch.log(count.to(logits.dtype)))
        # sigmoid(-inf) is 0: a masked key contributes nothing, and an all-masked row is simply 0
        weights = self.dropout(weights.masked_fill(~visible, 0.0))

        out = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.to_out(self.norm_out(out.transpose(1, 2).reshape(b, n, d)))
