from functools import partial
from typing import Optional

import torch
import torch.nn as nn


class SharedDropout(nn.Module):
    """Dropout whose mask is shared along one dimension."""

    def __init__(self, p: float, batch_dim: int):
        super().__init__()
        self.batch_dim = batch_dim
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        shape = list(x.shape)
        shape[self.batch_dim] = 1
        return x * self.dropout(x.new_ones(shape))


DropoutColumnwise = partial(SharedDropout, batch_dim=-2)


class TriangleAttentionEndingNode(nn.Module):
    """Triangular gated self-attention around ending node (AlphaFold 2, Algorithm 14).

    z: [B, N, N, C] pair representation; edge (i, j) attends to the edges (k, j) that end
    in the same node, biased by the edge (k, i).
    mask: [B, N, N], 1 for real pairs.
    Returns the updated pair representation.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.25, inf: float = 1e9):
        super().__init__()
        self.h = num_heads
        self.c = dim // num_heads
        self.inf = inf
        self.norm = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.bias = nn.Linear(dim, num_heads, bias=False)
        self.gate = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.drop = DropoutColumnwise(dropout)

    def forward(self, z: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, N, _, C = z.shape
        if mask is None:
            mask = z.new_ones(B, N, N)

        x = self.norm(z).transpose(1, 2)
        mask = mask.transpose(1, 2)

        q = self.q(x).view(B, N, N, self.h, self.c) * self.c ** -0.5
        k = self.k(x).view(B, N, N, self.h, self.c)
        v = self.v(x).view(B, N, N, self.h, self.c)

        logits = torch.einsum("brihc,brjhc->brhij", q, k)
        logits = logits + self.bias(x).permute(0, 3, 1, 2).unsqueeze(1)
        logits = logits + self.inf * (mask[:, :, None, None, :] - 1)
        a = logits.softmax(dim=-1)

        o = torch.einsum("brhij,brjhc->brihc", a, v).reshape(B, N, N, C)
        o = torch.sigmoid(self.gate(x)) * o
        return z + self.drop(self.out(o))
