import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_pairs(x, angles):
    x1, x2 = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class AxialRopeAttention(nn.Module):
    """Image self-attention with two-dimensional RoPE.

    Half of every head encodes the row, the other half the column. Tokens come in raster order and
    the grid may have any height and width.
    """

    def __init__(self, dim=64, num_heads=4, theta=100.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        assert self.head_dim % 4 == 0
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.proj = nn.Linear(dim, dim)
        quarter = self.head_dim // 4
        freqs = theta ** (-torch.arange(quarter).float() / quarter)
        self.register_buffer("freqs", freqs, persistent=False)

    def _angles(self, height, width):
        idx = torch.arange(height * width, device=self.freqs.device)
        rows = torch.div(idx, height, rounding_mode="floor").float()
        cols = (idx % height).float()
        return torch.cat((torch.outer(rows, self.freqs), torch.outer(cols, self.freqs)), dim=-1)

    def forward(self, x, grid):
        b, n, c = x.shape
        height, width = grid
        assert n == height * width
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        ang = self._angles(height, width)
        q, k = rotate_pairs(q, ang), rotate_pairs(k, ang)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))
