import math

import torch
from torch import nn


def softmax_kernel(data, projection, is_query, eps=1e-4):
    """Positive random features of the softmax kernel (FAVOR+)."""
    data = data * data.shape[-1] ** -0.25
    ratio = projection.shape[0] ** -0.5
    dash = torch.einsum("...nd,md->...nm", data, projection)
    diag = data.pow(2).sum(dim=-1, keepdim=True) / 2.0
    if is_query:
        stabilizer = dash.amax(dim=-1, keepdim=True)
    else:
        stabilizer = dash.new_full((), 4.0)
    return ratio * (torch.exp(dash - diag - stabilizer) + eps)


def gaussian_orthogonal_matrix(rows, cols):
    blocks = []
    remaining = rows
    while remaining > 0:
        q, _ = torch.linalg.qr(torch.randn(cols, cols))
        blocks.append(q.t()[: min(remaining, cols)])
        remaining -= cols
    return torch.cat(blocks) * math.sqrt(cols)


class PerformerCausalAttention(nn.Module):
    """Autoregressive attention in linear time."""

    def __init__(self, dim=128, heads=4, nb_features=64, eps=1e-6):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.eps = eps
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.register_buffer("projection", gaussian_orthogonal_matrix(nb_features, self.dim_head))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, self.dim_head).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v)
        )
        q = softmax_kernel(q, self.projection, is_query=True)
        k = softmax_kernel(k, self.projection, is_query=False)

        k_sum = k.sum(dim=-2)
        d_inv = 1.0 / (torch.einsum("bhnm,bhm->bhn", q, k_sum) + self.eps)

        context = torch.einsum("bhnm,bhnd->bhnmd", k, v).cumsum(dim=2)
        out = torch.einsum("bhnm,bhnmd,bhn->bhnd", q, context, d_inv)
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))
