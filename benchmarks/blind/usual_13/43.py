import torch
import torch.nn as nn


class EfficientAttention(nn.Module):
    """Efficient attention (Shen et al. 2021), linear in the sequence length.

    The queries are normalised over their features and the keys over the sequence, so each
    output is a convex mixture of the global context vectors. There is no separate
    denominator and no (n, n) matrix.
    """

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.reproject = nn.Linear(dim, dim)

    def forward(self, x, padding_mask=None):
        """padding_mask: (batch, n) bool, True at padding."""
        b, n, d = x.shape
        q = self.to_q(x).view(b, n, self.heads, self.dim_head)
        k = self.to_k(x).view(b, n, self.heads, self.dim_head)
        v = self.to_v(x).view(b, n, self.heads, self.dim_head)

        if padding_mask is not None:
            k = k.masked_fill(padding_mask[:, :, None, None], float("-inf"))

        q = q.softmax(dim=-1)
        k = k.softmax(dim=1)

        context = torch.einsum("bnhd,bnhe->bhde", k, v)
        out = torch.einsum("bnhd,bhde->bnhe", q, context)
        return self.reproject(out.reshape(b, n, d))
