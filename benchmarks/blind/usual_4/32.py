from functools import partial

import torch
from torch import nn


class TriangleAttention(nn.Module):
    """Triangle self-attention over a pair representation.

    ``starting=True`` is the update around the starting node (row-wise), ``starting=False`` the one
    around the ending node, which is the same computation on the transposed pair matrix.

    z:    (B, N, N, c_z)
    mask: (B, N, N), 1 for valid pairs
    """

    def __init__(self, c_z=32, c_hidden=8, no_heads=4, starting=True, inf=1e9):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.starting = starting
        self.inf = inf

        linear = partial(nn.Linear, c_z, bias=False)
        self.layer_norm = nn.LayerNorm(c_z)
        self.pair_bias = linear(no_heads)
        self.linear_q = linear(c_hidden * no_heads)
        self.linear_k = linear(c_hidden * no_heads)
        self.linear_v = linear(c_hidden * no_heads)
        self.linear_g = nn.Linear(c_z, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_z)

    def _heads(self, t):
        return t.view(*t.shape[:-1], self.no_heads, self.c_hidden)

    def forward(self, z, mask=None):
        if mask is None:
            mask = z.new_ones(z.shape[:-1])
        mask = mask.to(z.dtype)
        if not self.starting:
            z = z.transpose(-2, -3)
            mask = mask.transpose(-1, -2)

        z = self.layer_norm(z)
        q = self._heads(self.linear_q(z)) * self.c_hidden ** -0.5
        k = self._heads(self.linear_k(z))
        v = self._heads(self.linear_v(z))
        g = torch.sigmoid(self._heads(self.linear_g(z)))

        logits = torch.einsum("bijhc,bikhc->bihjk", q, k)
        logits = logits + self.pair_bias(z).permute(0, 3, 1, 2).unsqueeze(1)
        logits = logits + (self.inf * (mask - 1))[:, :, None, None, :]
        a = logits.softmax(dim=-1)

        o = torch.einsum("bihjk,bikhc->bijhc", a, v) * g
        o = self.linear_o(o.flatten(-2))
        if not self.starting:
            o = o.transpose(-2, -3)
        return o
