from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def rope_frequencies(dim, theta=100.0):
    return 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))


def rotate(x, angle):
    x = x.unflatten(-1, (-1, 2))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0], x[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class SpectrogramRoPEAttention(nn.Module):
    """Self-attention over spectrogram patches with axial 2-D rotary embeddings.

    The patches come in row-major order from a (frequency, time) grid. One half of each head is rotated by the
    frequency index, the other half by the time index.

    Args:
        grid_size: (frequency patches, time patches)
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, grid_size: Tuple[int, int] = (8, 16), theta: float = 100.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        assert self.head_dim % 4 == 0
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        angles = self._angles(grid_size, self.head_dim, theta)
        self.register_buffer("angles", angles, persistent=False)

    @staticmethod
    def _angles(grid_size, head_dim, theta):
        f, t = grid_size
        inv_freq = rope_frequencies(head_dim // 2, theta)
        idx = torch.arange(f * t)
        rows = torch.div(idx, t, rounding_mode="floor").float()
        cols = (idx % f).float()
        return torch.cat((torch.outer(rows, inv_freq), torch.outer(cols, inv_freq)), dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, self.angles), rotate(k, self.angles)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(B, N, C))
