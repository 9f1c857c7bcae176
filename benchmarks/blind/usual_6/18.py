from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class LinearAttention(nn.Module):
    """Bidirectional attention in linear time.

    softmax(QK^T)V is replaced by phi(Q) (phi(K)^T V), normalised by phi(Q) sum(phi(K)),
    with phi(x) = elu(x) + 1.

    Args:
        dim: input and output width
        heads: number of heads
        dim_head: width of a head
    """

    def __init__(self, dim: int = 64, heads: int = 4, dim_head: int = 16, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(
        self,
        x: torch.Tensor,
        context: Optional[torch.Tensor] = None,
        context_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """``context_mask``: bool (batch, context_len), padding positions are False."""
        context = x if context is None else context
        b, n, _ = x.shape

        q = self.to_q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.to_k(context).view(b, context.size(1), self.heads, -1).transpose(1, 2)
        v = self.to_v(context).view(b, context.size(1), self.heads, -1).transpose(1, 2)

        if context_mask is not None:
            keep = context_mask[:, None, :, None]
            k = k.masked_fill(~keep, 0.0)
            v = v.masked_fill(~keep, 0.0)

        q = F.elu(q) + 1
        k = F.elu(k) + 1

        kv = torch.einsum('bhnd,bhne->bhde', k, v)
        norm = torch.einsum('bhnd,bhd->bhn', q, k.sum(dim=2)).clamp(min=1e-6)
        out = torch.einsum('bhnd,bhde->bhne', q, kv) / norm.unsqueeze(-1)

        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
