import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class DeformableAttention2d(nn.Module):
    """Single-scale deformable attention (Deformable DETR without the CUDA kernel).

    The weights come from the query alone, without keys. They are normalised over the sampling points of each head.

    Args:
        query: (B, Lq, C)
        reference_points: (B, Lq, 2), (x, y) in [0, 1]
        feat: (B, C, H, W)
    """

    def __init__(self, embed_dim=64, num_heads=8, num_points=4):
        super().__init__()
        self.num_heads = num_heads
        self.num_points = num_points
        self.sampling_offsets = nn.Linear(embed_dim, num_heads * num_points * 2)
        self.attention_weights = nn.Linear(embed_dim, num_heads * num_points)
        self.value_proj = nn.Conv2d(embed_dim, embed_dim, 1)
        self.output_proj = nn.Linear(embed_dim, embed_dim)
        self._reset_parameters()

    def _reset_parameters(self):
        nn.init.zeros_(self.sampling_offsets.weight)
        thetas = torch.arange(self.num_heads, dtype=torch.float32) * (2.0 * math.pi / self.num_heads)
        grid_init = torch.stack([thetas.cos(), thetas.sin()], -1)
        grid_init = grid_init / grid_init.abs().max(-1, keepdim=True)[0]
        grid_init = grid_init.view(self.num_heads, 1, 2).repeat(1, self.num_points, 1)
        for i in range(self.num_points):
            grid_init[:, i, :] *= i + 1
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(grid_init.view(-1))
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        nn.init.xavier_uniform_(self.value_proj.weight)
        nn.init.zeros_(self.value_proj.bias)
        nn.init.xavier_uniform_(self.output_proj.weight)
        nn.init.zeros_(self.output_proj.bias)

    def forward(self, query, reference_points, feat):
        B, Lq, C = query.shape
        H, W = feat.shape[-2:]
        M, P = self.num_heads, self.num_points

        value = self.value_proj(feat).reshape(B * M, C // M, H, W)
        offsets = self.sampling_offsets(query).view(B, Lq, M, P, 2)
        weights = self.attention_weights(query).view(B, Lq, M, P).softmax(-1)

        normalizer = torch.tensor([W, H], dtype=query.dtype, device=query.device)
        locations = reference_points[:, :, None, None, :] + offsets / normalizer

        grid = 2 * locations - 1
        grid = grid.permute(0, 2, 1, 3, 4).reshape(B * M, Lq, P, 2)
        sampled = F.grid_sample(value, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        weights = weights.permute(0, 2, 1, 3).reshape(B * M, 1, Lq, P)
        out = (sampled * weights).sum(-1).view(B, C, Lq).transpose(1, 2)
        return self.output_proj(out)
