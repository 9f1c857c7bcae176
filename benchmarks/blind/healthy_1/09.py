import math
from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn


class MultiScaleDeformableAttention(nn.Module):
    """Deformable attention over a pyramid, plain ``grid_sample`` version.

    query:            (N, Lq, C)
    reference_points: (N, Lq, n_levels, 2), (x, y) in [0, 1], (0, 0) is the top left corner of the image
    input_flatten:    (N, sum(H_l * W_l), C)
    spatial_shapes:   [(H_0, W_0), ..., (H_{L-1}, W_{L-1})]
    padding_mask:     (N, sum(H_l * W_l)), True on padded elements
    """

    def __init__(self, d_model=64, n_levels=2, n_heads=4, n_points=4):
        super().__init__()
        if d_model % n_heads != 0:
            raise ValueError(f"d_model must be divisible by n_heads, but got {d_model} and {n_heads}")
        self.d_model = d_model
        self.n_levels = n_levels
        self.n_heads = n_heads
        self.n_points = n_points
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)
        self._reset_parameters()

    def _reset_parameters(self):
        nn.init.constant_(self.sampling_offsets.weight, 0.0)
        thetas = torch.arange(self.n_heads, dtype=torch.float32) * (2.0 * math.pi / self.n_heads)
        grid = torch.stack([thetas.cos(), thetas.sin()], -1)
        grid = grid / grid.abs().max(-1, keepdim=True)[0]
        grid = grid.view(self.n_heads, 1, 1, 2).repeat(1, self.n_levels, self.n_points, 1)
        for i in range(self.n_points):
            grid[:, :, i, :] *= i + 1
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(grid.reshape(-1))
        nn.init.constant_(self.attention_weights.weight, 0.0)
        nn.init.constant_(self.attention_weights.bias, 0.0)
        nn.init.xavier_uniform_(self.value_proj.weight)
        nn.init.constant_(self.value_proj.bias, 0.0)
        nn.init.xavier_uniform_(self.output_proj.weight)
        nn.init.constant_(self.output_proj.bias, 0.0)

    def forward(
        self,
        query: torch.Tensor,
        reference_points: torch.Tensor,
        input_flatten: torch.Tensor,
        spatial_shapes: Sequence[Tuple[int, int]],
        padding_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        n, len_q, _ = query.shape
        len_in = input_flatten.shape[1]
        sizes = [h * w for h, w in spatial_shapes]
        assert sum(sizes) == len_in and len(sizes) == self.n_levels

        value = self.value_proj(input_flatten)
        if padding_mask is not None:
            value = value.masked_fill(padding_mask[..., None], 0.0)
        value = value.view(n, len_in, self.n_heads, self.d_model // self.n_heads)

        offsets = self.sampling_offsets(query).view(n, len_q, self.n_heads, self.n_levels, self.n_points, 2)
        weights = self.attention_weights(query).view(n, len_q, self.n_heads, self.n_levels * self.n_points)
        # one distribution over all levels and points
        weights = F.softmax(weights, -1).view(n, len_q, self.n_heads, self.n_levels, self.n_points)

        # offsets are in pixels of their own level
        normalizer = torch.tensor([[w, h] for h, w in spatial_shapes], dtype=query.dtype, device=query.device)
        locations = reference_points[:, :, None, :, None, :] + offsets / normalizer[None, None, None, :, None, :]
        grids = 2 * locations - 1

        sampled = []
        for level, ((h, w), level_value) in enumerate(zip(spatial_shapes, value.split(sizes, dim=1))):
            # (N, HW, heads, D) -> (N * heads, D, H, W)
            fmap = level_value.permute(0, 2, 3, 1).reshape(n * self.n_heads, -1, h, w)
            # (N, Lq, heads, P, 2) -> (N * heads, Lq, P, 2)
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(
                F.grid_sample(fmap, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
            )
        # (N * heads, D, Lq, L, P)
        sampled = torch.stack(sampled, dim=-2)
        weights = weights.transpose(1, 2).reshape(n * self.n_heads, 1, len_q, self.n_levels, self.n_points)
        out = (sampled * weights).sum(dim=(-2, -1)).view(n, self.d_model, len_q)
        return self.output_proj(out.transpose(1, 2))
