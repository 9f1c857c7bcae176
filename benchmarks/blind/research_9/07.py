import math

import torch
import torch.nn as nn


class TiedRowAttention(nn.Module):
    """Row attention of the MSA Transformer with weights shared by all rows of the alignment.

    The logits of the rows are summed before the softmax. A sum of R terms grows like sqrt(R), hence
    the extra ``1 / sqrt(R)`` next to the usual ``1 / sqrt(d)``; R counts the rows that are not padding.

    x: [batch, rows, columns, dim]; padding: [batch, rows, columns], True where padded. An alignment
    is padded by whole rows and by whole columns.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, padding=None, return_weights=False):
        b, r, c, _ = x.shape
        q = self.to_q(x).view(b, r, c, self.num_heads, self.head_dim)
        k = self.to_k(x).view(b, r, c, self.num_heads, self.head_dim)
        v = self.to_v(x).view(b, r, c, self.num_heads, self.head_dim)

        if padding is None:
            n_rows = torch.full((b,), float(r), device=x.device, dtype=x.dtype)
        else:
            n_rows = (~padding.all(dim=2)).sum(dim=1).clamp(min=1).to(x.dtype)
            q = q.masked_fill(padding[..., None, None], 0.0)
        scale = 1.0 / (math.sqrt(self.head_dim) * n_rows.sqrt())
        q = q * scale.view(b, 1, 1, 1, 1)

        logits = torch.einsum("brihd,brjhd->bhij", q, k)
        if padding is not None:
            gone = padding.all(dim=1)
            logits = logits.masked_fill(gone[:, None, None, :], torch.finfo(logits.dtype).min)
        probs = logits.softmax(dim=-1)
        ctx = torch.einsum("bhij,brjhd->brihd", self.dropout(probs), v)
        out = self.to_out(ctx.flatten(3))
        return (out, probs) if return_weights else out
