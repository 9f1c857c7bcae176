from typing import Optional

import torch
from torch import nn


class TriangleAttention(nn.Module):
    """
    Gated triangle self-attention of the Evoformer (AlphaFold 2, algorithms 13 and 14).

    Args:
        c_z: channels of the pair representation.
        c_hidden: channels per head.
        no_heads: number of heads.
        starting: around the starting node if True, around the ending node otherwise.
        inf: size of the mask penalty; finite, so that padded rows stay free of nan.
    """

    def __init__(self, c_z: int = 32, c_hidden: int = 8, no_heads: int = 4, starting: bool = True, inf: float = 1e9):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.starting = starting
        self.inf = inf
        width = c_hidden * no_heads
        self.layer_norm = nn.LayerNorm(c_z)
        self.linear_b = nn.Linear(c_z, no_heads, bias=False)
        self.linear_q = nn.Linear(c_z, width, bias=False)
        self.linear_k = nn.Linear(c_z, width, bias=False)
        self.linear_v = nn.Linear(c_z, width, bias=False)
        self.linear_g = nn.Linear(c_z, width)
        self.linear_o = nn.Linear(width, c_z)
        # gates start open
        nn.init.zeros_(self.linear_g.weight)
        nn.init.ones_(self.linear_g.bias)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        # [*, I, J, H * C] -> [*, I, H, J, C]
        return t.reshape(*t.shape[:-1], self.no_heads, self.c_hidden).transpose(-2, -3)

    def forward(self, z: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Args:
            z: [*, N, N, c_z] pair representation.
            mask: [*, N, N], 1 for pairs that exist.
        Returns:
            [*, N, N, c_z] update, the caller adds the residual.
        """
        if mask is None:
            mask = z.new_ones(z.shape[:-1])
        if not self.starting:
            # z_ji in place of z_ij: keys become k_kj and the bias b_ki
            z = z.transpose(-2, -3)
            mask = mask.transpose(-1, -2)

        z = self.layer_norm(z)
        # [*, I, 1, 1, J]
        mask_bias = (self.inf * (mask.to(z.dtype) - 1))[..., :, None, None, :]
        # [*, 1, H, J, K]: the third edge of the triangle, shared by all rows i
        triangle_bias = self.linear_b(z).movedim(-1, -3).unsqueeze(-4)

        q = self._heads(self.linear_q(z)) * self.c_hidden ** -0.5
        k = self._heads(self.linear_k(z))
        v = self._heads(self.linear_v(z))
        a = q @ k.transpose(-1, -2) + mask_bias + triangle_bias
        a = a.softmax(dim=-1)

        o = (a @ v).transpose(-2, -3).flatten(-2)
        o = o * self.linear_g(z).sigmoid()
        o = self.linear_o(o)
        if not self.starting:
            o = o.transpose(-2, -3)
        return o
