import math
from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class DeformableAttention(nn.Module):
    """Single-scale deformable attention.

    query            [B, Q, dim]
    reference_points [B, Q, 2], normalised (x, y) in [0, 1]; (0, 0) is the top left and
                     (1, 1) the bottom right corner of the feature map
    feature          [B, H * W, dim], raster order
    spatial_shape    (H, W)

    Every query samples ``num_points`` locations per head around its reference point.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_points: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.num_points = num_points
        self.head_dim = dim // num_heads
        self.sampling_offsets = nn.Linear(dim, num_heads * num_points * 2)
        self.attention_weights = nn.Linear(dim, num_heads * num_points)
        self.value_proj = nn.Linear(dim, dim)
        self.output_proj = nn.Linear(dim, dim)
        self._reset_parameters()

    def _reset_parameters(self):
        nn.init.zeros_(self.sampling_offsets.weight)
        theta = torch.arange(self.num_heads).float() * (2.0 * math.pi / self.num_heads)
        directions = torch.stack([theta.cos(), theta.sin()], -1)
        directions = directions / directions.abs().max(-1, keepdim=True)[0]
        radius = torch.arange(1, self.num_points + 1).float()
        bias = directions[:, None, :] * radius[None, :, None]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(bias.flatten())

    def forward(self, query, reference_points, feature, spatial_shape: Tuple[int, int]):
        B, Q, _ = query.shape
        H, W = spatial_shape
        h, p, d = self.num_heads, self.num_points, self.head_dim

        value = self.value_proj(feature).view(B, H * W, h, d)
        value = value.permute(0, 2, 3, 1).reshape(B * h, d, H, W)

        offsets = self.sampling_offsets(query).view(B, Q, h, p, 2)
        weights = self.attention_weights(query).view(B, Q, h, p).softmax(dim=-1)

        normalizer = offsets.new_tensor([W, H])
        locations = reference_points[:, :, None, None, :] + offsets / normalizer
        grid = locations.transpose(1, 2).reshape(B * h, Q, p, 2)

        sampled = F.grid_sample(value, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        weights = weights.transpose(1, 2).reshape(B * h, 1, Q, p)
        out = (sampled * weights).sum(-1).view(B, h * d, Q).transpose(1, 2)
        return self.output_proj(out)
