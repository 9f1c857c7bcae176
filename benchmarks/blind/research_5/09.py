from typing import Tuple

import torch
from torch import nn
import torch.nn.functional as F


def axial_angles(height: int, width: int, dim: int, theta: float, device=None) -> torch.Tensor:
    """Rotation angles for the patches of an image in raster order, ``[height * width, dim // 2]``.

    The first half of the frequencies turns with the row, the second half with the column.
    """
    freqs = 1.0 / theta ** (torch.arange(0, dim, 4, device=device).float() / dim)
    index = torch.arange(height * width, device=device)
    rows = torch.div(index, height, rounding_mode="floor").float()
    cols = (index % height).float()
    return torch.cat([torch.outer(rows, freqs), torch.outer(cols, freqs)], dim=-1)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turn = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)


class RoPE2DAttention(nn.Module):
    """ViT self-attention with axial rotary embeddings for images of any aspect ratio."""

    def __init__(self, dim: int = 64, num_heads: int = 4, qkv_bias: bool = True, rope_theta: float = 100.0,
                 attn_drop: float = 0.0, proj_drop: float = 0.0):
        super().__init__()
        assert dim % num_heads == 0 and (dim // num_heads) % 4 == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rope_theta = rope_theta
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: torch.Tensor, grid: Tuple[int, int]) -> torch.Tensor:
        """
        Args:
            x: patches in raster order, ``[B, H * W, dim]``.
            grid: ``(H, W)``.
        """
        b, n, c = x.shape
        h, w = grid
        assert n == h * w
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        angles = axial_angles(h, w, self.head_dim, self.rope_theta, device=x.device)
        q, k = rotate(q, angles), rotate(k, angles)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop if self.training else 0.0)
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(b, n, c)))
