import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class DeformableCrossAttention(nn.Module):
    """Single-scale deformable attention (after Deformable DETR).

    Every query samples a few points around its reference point, at offsets which it predicts, and mixes the
    bilinearly interpolated values.

    Args:
        dim: channels.
        num_heads: number of heads.
        num_points: sampling points per head.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, num_points: int = 4):
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
        thetas = torch.arange(self.num_heads, dtype=torch.float32) * (2.0 * math.pi / self.num_heads)
        ring = torch.stack([thetas.cos(), thetas.sin()], dim=-1)
        ring = ring / ring.abs().max(dim=-1, keepdim=True).values
        ring = ring[:, None, :] * torch.arange(1, self.num_points + 1)[None, :, None]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(ring.reshape(-1))
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)

    def forward(self, query, reference_points, feature_map):
        """
        Args:
            query: [B, Q, dim].
            reference_points: [B, Q, 2] as (x, y), with (0, 0) at the top left and (1, 1) at the bottom right.
            feature_map: [B, dim, H, W].
        """
        b, n_q, _ = query.shape
        h, w = feature_map.shape[-2:]
        value = self.value_proj(feature_map.flatten(2).transpose(1, 2))
        value = value.view(b, h * w, self.num_heads, self.head_dim).permute(0, 2, 3, 1)
        value = value.reshape(b * self.num_heads, self.head_dim, h, w)

        offsets = self.sampling_offsets(query).view(b, n_q, self.num_heads, self.num_points, 2)
        size = torch.tensor([w, h], device=query.device, dtype=query.dtype)
        locations = reference_points[:, :, None, None, :] + offsets / size
        weights = self.attention_weights(query).view(b, n_q, self.num_heads, self.num_points).softmax(dim=-1)

        grid = locations.transpose(1, 2).flatten(0, 1)
        sampled = F.grid_sample(value, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        weights = weights.transpose(1, 2).reshape(b * self.num_heads, 1, n_q, self.num_points)
        out = (sampled * weights).sum(dim=-1).view(b, self.num_heads * self.head_dim, n_q)
        return self.output_proj(out.transpose(1, 2))
