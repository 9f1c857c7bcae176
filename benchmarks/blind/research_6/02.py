import torch
from torch import nn


class TiedRowAttention(nn.Module):
    """Row self attention of an alignment with one attention map per MSA.

    All sequences (rows) of the alignment share a single map over the columns: the
    logits of the rows are added up. Since the sum grows with the depth of the MSA the
    logits are scaled by ``1 / sqrt(num_rows * head_dim)``, where only real rows count.

    Args:
        x: [batch, rows, cols, dim]
        padding_mask: [batch, rows, cols], True where the cell is padding. A padded row
            is padding in all of its cells.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, padding_mask=None):
        b, r, c, d = x.shape
        shape = (b, r, c, self.num_heads, self.head_dim)
        q = self.q_proj(x).view(shape)
        k = self.k_proj(x).view(shape)
        v = self.v_proj(x).view(shape)

        if padding_mask is None:
            depth = x.new_full((b,), float(r))
        else:
            depth = (~padding_mask).any(-1).sum(-1).clamp(min=1).to(x.dtype)
            # padded rows must not vote
            q = q.masked_fill(padding_mask[..., None, None], 0.0)

        q = q * (depth * self.head_dim).rsqrt().view(b, 1, 1, 1, 1)
        logits = torch.einsum("brihd,brjhd->bhij", q, k)

        if padding_mask is not None:
            dead_cols = padding_mask.all(dim=1)
            logits = logits.masked_fill(dead_cols[:, None, None, :], -10000.0)

        weights = self.dropout(logits.softmax(dim=-1))
        ctx = torch.einsum("bhij,brjhd->brihd", weights, v)
        return self.out_proj(ctx.reshape(b, r, c, d)), weights
