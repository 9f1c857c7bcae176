import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SingleScaleDeformableAttention(nn.Module):
    """Deformable attention on one feature level.

    Each query looks at ``n_points`` locations per head around its reference point. Both the offsets
    and the weights are linear functions of the query: there are no keys and no dot product.

    query            [B, Q, C]
    reference_points [B, Q, 2], (x, y) in [0, 1], (0, 0) is the top left corner of the map
    feat             [B, H*W, C] row major
    spatial_shape    (H, W)
    padding_mask     [B, H*W], True on padded cells
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4, n_points: int = 4):
        super().__init__()
        if d_model % n_heads:
            raise ValueError("d_model must be divisible by n_heads")
        self.n_heads = n_heads
        self.n_points = n_points
        self.d_head = d_model // n_heads
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_points)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)
        self._reset_parameters()

    def _reset_parameters(self):
        nn.init.zeros_(self.sampling_offsets.weight)
        theta = torch.arange(self.n_heads).float() * (2.0 * math.pi / self.n_heads)
        grid = torch.stack([theta.cos(), theta.sin()], -1)
        grid = grid / grid.abs().max(-1, keepdim=True)[0]
        grid = grid[:, None, :].repeat(1, self.n_points, 1)
        grid = grid * torch.arange(1, self.n_points + 1).view(1, -1, 1)
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(grid.reshape(-1))
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        nn.init.xavier_uniform_(self.value_proj.weight)
        nn.init.xavier_uniform_(self.output_proj.weight)

    def forward(self, query, reference_points, feat, spatial_shape, padding_mask=None):
        B, Q, _ = query.shape
        H, W = spatial_shape
        value = self.value_proj(feat)
        if padding_mask is not None:
            value = value.masked_fill(padding_mask[..., None], 0.0)
        value = value.view(B, H * W, self.n_heads, self.d_head).permute(0, 2, 3, 1)
        value = value.reshape(B * self.n_heads, self.d_head, H, W)

        offsets = self.sampling_offsets(query).view(B, Q, self.n_heads, self.n_points, 2)
        weights = self.attention_weights(query).view(B, Q, self.n_heads, self.n_points).softmax(-1)

        # offsets are in cells, reference points are relative
        cells = torch.tensor([W, H], device=query.device, dtype=query.dtype)
        loc = reference_points[:, :, None, None, :] + offsets / cells
        grid = (2.0 * loc - 1.0).transpose(1, 2).reshape(B * self.n_heads, Q, self.n_points, 2)
        sampled = F.grid_sample(value, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

        weights = weights.transpose(1, 2).reshape(B * self.n_heads, 1, Q, self.n_points)
        out = (sampled * weights).sum(-1).view(B, self.n_heads * self.d_head, Q).transpose(1, 2)
        return self.output_proj(out)
