import torch
import torch.nn as nn


class EfficientAttention(nn.Module):
    """Linear-time attention of Shen et al. (WACV 2021).

    Queries are normalised with a softmax over the feature dimension and keys with a softmax over the
    positions. k^T v is then a small matrix per head, and the implied attention rows sum to one:
    sum_j sum_d q[i, d] k[j, d] = sum_d q[i, d] = 1.

    pad_mask: (batch, seq) bool, True at padding.
    """

    def __init__(self, dim: int = 64, head_count: int = 4):
        super().__init__()
        self.head_count = head_count
        self.queries = nn.Linear(dim, dim)
        self.keys = nn.Linear(dim, dim)
        self.values = nn.Linear(dim, dim)
        self.reprojection = nn.Linear(dim, dim)

    def forward(self, x, pad_mask=None):
        n, l, c = x.shape
        q = self.queries(x).view(n, l, self.head_count, -1)
        k = self.keys(x).view(n, l, self.head_count, -1)
        v = self.values(x).view(n, l, self.head_count, -1)
        if pad_mask is not None:
            k = k.masked_fill(pad_mask[:, :, None, None], torch.finfo(k.dtype).min)
        q = q.softmax(dim=-1)
        k = k.softmax(dim=1)
        context = torch.einsum("nlhd,nlhe->nhde", k, v)
        out = torch.einsum("nlhd,nhde->nlhe", q, context)
        return self.reprojection(out.reshape(n, l, c))
