import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class DeformableSelfAttention(nn.Module):
    """Single-scale deformable attention over a flattened feature map.

    Every query samples ``num_points`` positions per head around its own location and mixes
    the sampled values with softmax weights predicted from the query.

    x: [B, H*W, dim] in row-major order.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_points: int = 4):
        super().__init__()
        assert dim % num_heads == 0
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
        theta = torch.arange(self.num_heads, dtype=torch.float32) * (2.0 * math.pi / self.num_heads)
        grid = torch.stack([theta.cos(), theta.sin()], -1)
        grid = grid / grid.abs().max(-1, keepdim=True)[0]
        grid = grid.view(self.num_heads, 1, 2).repeat(1, self.num_points, 1)
        for i in range(self.num_points):
            grid[:, i] *= i + 1
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(grid.flatten())
        nn.init.xavier_uniform_(self.value_proj.weight)
        nn.init.xavier_uniform_(self.output_proj.weight)

    @staticmethod
    def reference_points(H, W, device):
        rows = (torch.arange(H, device=device, dtype=torch.float32) + 0.5) / H
        cols = (torch.arange(W, device=device, dtype=torch.float32) + 0.5) / W
        ref = torch.stack(torch.meshgrid(rows, cols, indexing="ij"), dim=-1)
        return ref.reshape(H * W, 2)

    def forward(self, x, H, W):
        B, N, C = x.shape
        assert N == H * W
        value = self.value_proj(x).view(B, N, self.num_heads, self.head_dim)
        value = value.permute(0, 2, 3, 1).reshape(B * self.num_heads, self.head_dim, H, W)

        offsets = self.sampling_offsets(x).view(B, N, self.num_heads, self.num_points, 2)
        size = torch.tensor([W, H], device=x.device, dtype=x.dtype)
        loc = self.reference_points(H, W, x.device)[None, :, None, None, :] + offsets / size

        weights = self.attention_weights(x).view(B, N, self.num_heads, self.num_points).softmax(-1)
        weights = weights.transpose(1, 2).reshape(B * self.num_heads, 1, N, self.num_points)

        grid = (2.0 * loc - 1.0).transpose(1, 2).flatten(0, 1)
        sampled = F.grid_sample(value, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        out = (sampled * weights).sum(-1).view(B, C, N).transpose(1, 2)
        return self.output_proj(out)
