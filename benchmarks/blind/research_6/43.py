from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class PatchAttention2DRoPE(nn.Module):
    """Self-attention over an image of any aspect ratio, with 2-D rotary positions.

    The patches of an H x W grid come in raster order (row by row). The first half of the
    head channels is rotated by the row, the second half by the column of the patch.

    x: [B, H * W, dim], grid: (H, W)
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, theta: float = 100.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        assert self.head_dim % 4 == 0
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        half = self.head_dim // 2
        freqs = theta ** (-torch.arange(0, half, 2).float() / half)
        self.register_buffer("freqs", freqs, persistent=False)

    def angles(self, grid: Tuple[int, int]):
        h, w = grid
        idx = torch.arange(h * w, device=self.freqs.device)
        row = torch.div(idx, h, rounding_mode="floor").float()
        col = (idx % h).float()
        return torch.cat([row[:, None] * self.freqs, col[:, None] * self.freqs], dim=-1)

    @staticmethod
    def rotate(x, ang):
        pairs = x.float().unflatten(-1, (-1, 2))
        re, im = pairs.unbind(-1)
        cos, sin = ang.cos(), ang.sin()
        out = torch.stack([re * cos - im * sin, re * sin + im * cos], dim=-1)
        return out.flatten(-2).to(x.dtype)

    def forward(self, x: torch.Tensor, grid: Tuple[int, int]) -> torch.Tensor:
        B, N, C = x.shape
        assert N == grid[0] * grid[1]
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        ang = self.angles(grid)
        q, k = self.rotate(q, ang), self.rotate(k, ang)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(B, N, C))
