from typing import Optional

import torch
from torch import nn


class GatedRowAttention(nn.Module):
    """Attention within each row of a pair representation, with a bias shared by the rows and a sigmoid gate."""

    def __init__(self, c_in: int, c_hidden: int, no_heads: int):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.linear_q = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_g = nn.Linear(c_in, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_in)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (self.no_heads, self.c_hidden)).transpose(-2, -3)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q = self._heads(self.linear_q(x)) * self.c_hidden**-0.5
        k = self._heads(self.linear_k(x))
        v = self._heads(self.linear_v(x))
        a = torch.softmax(q @ k.transpose(-1, -2) + bias, dim=-1)
        o = (a @ v).transpose(-2, -3).flatten(-2)
        return self.linear_o(torch.sigmoid(self.linear_g(x)) * o)


class TriangleAttentionEndingNode(nn.Module):
    """Triangular self-attention around the ending node (AlphaFold 2, Algorithm 14), with the residual.

    The edge (i, j) attends to the edges (k, j) which share its ending node j.

    Args:
        c_z: channels of the pair representation.
        c_hidden: channels per head.
        no_heads: number of heads.
    """

    def __init__(self, c_z: int = 64, c_hidden: int = 16, no_heads: int = 4, inf: float = 1e9):
        super().__init__()
        self.inf = inf
        self.layer_norm = nn.LayerNorm(c_z)
        self.linear_b = nn.Linear(c_z, no_heads, bias=False)
        self.mha = GatedRowAttention(c_z, c_hidden, no_heads)

    def forward(self, z: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Args:
            z: [B, N, N, c_z] pair representation.
            mask: [B, N, N], 1 for existing pairs.
        """
        if mask is None:
            mask = z.new_ones(z.shape[:-1])
        x = self.layer_norm(z).transpose(1, 2)
        mask = mask.transpose(1, 2)

        mask_bias = (self.inf * (mask - 1))[:, :, None, None, :]
        triangle_bias = self.linear_b(x).permute(0, 3, 1, 2).unsqueeze(1)
        update = self.mha(x, triangle_bias + mask_bias)
        return z + update
