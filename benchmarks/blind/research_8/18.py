import math

import torch
import torch.nn as nn


class TiedRowAttention(nn.Module):
    """Row attention of the MSA Transformer with one attention map for all the sequences of the alignment.

    The logits are summed over the R rows, which is why they are divided by sqrt(R) on top of sqrt(head_dim). Queries at
    padded cells are set to zero so that they do not contribute to the sum.

    x: [R, C, B, D] (rows, columns, batch, features); padding_mask: [B, R, C], True at padding
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, padding_mask=None):
        rows, cols, batch, dim = x.shape
        scaling = self.head_dim ** -0.5 / math.sqrt(rows)
        shape = (rows, cols, batch, self.num_heads, self.head_dim)
        q = self.q_proj(x).view(shape) * scaling
        k = self.k_proj(x).view(shape)
        v = self.v_proj(x).view(shape)

        if padding_mask is not None:
            cell_pad = padding_mask.permute(1, 2, 0)[..., None, None]
            q = q.masked_fill(cell_pad, 0.0)

        logits = torch.einsum("rinhd,rjnhd->hnij", q, k)
        if padding_mask is not None:
            col_pad = padding_mask[:, 0]
            logits = logits.masked_fill(col_pad[None, :, None, :], -10000.0)
        probs = self.dropout(logits.softmax(-1))
        ctx = torch.einsum("hnij,rjnhd->rinhd", probs, v)
        return self.out_proj(ctx.reshape(rows, cols, batch, dim)), probs
