import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class TiedRowAttention(nn.Module):
    """Row attention of the MSA Transformer with one attention map tied across all the sequences.

    The logits are summed over the rows of the alignment, hence the additional ``1 / sqrt(rows)``
    next to the usual ``1 / sqrt(head_dim)``. Rows that are only padding are left out of the count
    and contribute nothing to the sum.

    Args:
        x: ``[B, R, C, dim]``
        padding_mask: bool ``[B, R, C]``, True at padding. The first row is the query sequence and is
            as long as every other real row.
    Returns:
        output ``[B, R, C, dim]`` and the tied map ``[B, heads, C, C]``.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: torch.Tensor, padding_mask: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        b, r, c, d = x.shape
        shape = (b, r, c, self.num_heads, self.head_dim)
        q = self.q_proj(x).view(shape) / math.sqrt(self.head_dim)
        k = self.k_proj(x).view(shape)
        v = self.v_proj(x).view(shape)

        if padding_mask is None:
            q = q / math.sqrt(r)
        else:
            rows = (~padding_mask).any(dim=-1).sum(dim=-1).clamp(min=1).to(x.dtype)
            q = q / rows.sqrt().view(b, 1, 1, 1, 1)
            q = q.masked_fill(padding_mask[..., None, None], 0.0)

        logits = torch.einsum("brihd,brjhd->bhij", q, k)
        if padding_mask is not None:
            logits = logits.masked_fill(padding_mask[:, 0][:, None, None, :], -10000.0)
        probs = logits.softmax(dim=-1)
        context = torch.einsum("bhij,brjhd->brihd", self.dropout(probs), v)
        return self.out_proj(context.reshape(b, r, c, d)), probs
