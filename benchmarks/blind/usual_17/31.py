import math

import torch
import torch.nn as nn


def orthogonal_gaussian(m, d):
    blocks = []
    for _ in range(math.ceil(m / d)):
        q, _ = torch.linalg.qr(torch.randn(d, d))
        blocks.append(q.t())
    w = torch.cat(blocks)[:m]
    return w * torch.randn(m, d).norm(dim=1, keepdim=True)


class CausalFavorAttention(nn.Module):
    """Performer (FAVOR+) with positive random features for autoregressive models."""

    def __init__(self, dim=64, heads=4, nb_features=64, eps=1e-6):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.eps = eps
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.register_buffer("projection", orthogonal_gaussian(nb_features, self.dim_head))

    def _features(self, x):
        x = x * self.dim_head ** -0.25
        proj = torch.einsum("bhnd,md->bhnm", x, self.projection)
        norm = x.pow(2).sum(dim=-1, keepdim=True) / 2
        return torch.exp(proj - norm) * self.projection.shape[0] ** -0.5 + self.eps

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, self.dim_head).transpose(1, 2)
            for f in (self.to_q, self.to_k, self.to_v)
        )
        q, k = self._features(q), self._features(k)

        context = torch.einsum("bhnm,bhnd->bhnmd", k, v).cumsum(dim=2)
        k_sum = k.sum(dim=2)
        d_inv = 1.0 / torch.einsum("bhnm,bhm->bhn", q, k_sum)
        out = torch.einsum("bhnm,bhnmd,bhn->bhnd", q, context, d_inv)

        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
