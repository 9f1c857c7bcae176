from typing import Optional

import torch
from torch import nn


class TriangleAttention(nn.Module):
    """Triangle self-attention around the starting or the ending node (AlphaFold 2, algorithms 13/14).

    The ending node variant is the starting node variant on the transposed pair representation.

    Args:
        z: pair representation ``[B, I, J, c_z]``
        mask: ``[B, I, J]``, 1 for pairs of real residues
    """

    def __init__(self, c_z: int = 32, c_hidden: int = 8, no_heads: int = 4, starting: bool = False, inf: float = 1e9):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.starting = starting
        self.inf = inf
        self.layer_norm = nn.LayerNorm(c_z)
        self.linear_bias = nn.Linear(c_z, no_heads, bias=False)
        self.linear_q = nn.Linear(c_z, no_heads * c_hidden, bias=False)
        self.linear_k = nn.Linear(c_z, no_heads * c_hidden, bias=False)
        self.linear_v = nn.Linear(c_z, no_heads * c_hidden, bias=False)
        self.linear_g = nn.Linear(c_z, no_heads * c_hidden)
        self.linear_o = nn.Linear(no_heads * c_hidden, c_z)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.no_heads, self.c_hidden)).transpose(-2, -3)

    def forward(self, z: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        if mask is None:
            mask = z.new_ones(z.shape[:-1])
        if not self.starting:
            z = z.transpose(1, 2)
            mask = mask.transpose(1, 2)

        z = self.layer_norm(z)
        # [B, I, 1, 1, J]
        mask_bias = (self.inf * (mask.to(z.dtype) - 1))[:, :, None, None, :]
        # [B, 1, H, J, J]
        triangle_bias = self.linear_bias(z).permute(0, 3, 1, 2).unsqueeze(1)

        q = self._heads(self.linear_q(z)) * self.c_hidden ** -0.5
        k = self._heads(self.linear_k(z))
        v = self._heads(self.linear_v(z))
        a = q @ k.transpose(-1, -2) + mask_bias + triangle_bias
        o = (a.softmax(dim=-1) @ v).transpose(-2, -3).flatten(-2)
        o = self.linear_o(torch.sigmoid(self.linear_g(z)) * o)

        if not self.starting:
            o = o.transpose(1, 2)
        return o
