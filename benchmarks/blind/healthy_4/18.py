import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def ms_deform_attn_core_pytorch(value, value_spatial_shapes, sampling_locations, attention_weights):
    """value (N, S, M, D); locations (N, Lq, M, L, P, 2) in [0, 1], (x, y); weights (N, Lq, M, L, P)."""
    N_, S_, M_, D_ = value.shape
    _, Lq_, _, L_, P_, _ = sampling_locations.shape
    value_list = value.split([h * w for h, w in value_spatial_shapes], dim=1)
    sampling_grids = 2 * sampling_locations - 1
    sampled = []
    for lvl, (h, w) in enumerate(value_spatial_shapes):
        # N_, H_*W_, M_, D_ -> N_*M_, D_, H_, W_
        value_l = value_list[lvl].flatten(2).transpose(1, 2).reshape(N_ * M_, D_, h, w)
        # N_, Lq_, M_, P_, 2 -> N_*M_, Lq_, P_, 2
        grid_l = sampling_grids[:, :, :, lvl].transpose(1, 2).flatten(0, 1)
        sampled.append(
            F.grid_sample(value_l, grid_l, mode="bilinear", padding_mode="zeros", align_corners=False)
        )
    # N_, Lq_, M_, L_, P_ -> N_*M_, 1, Lq_, L_*P_
    attention_weights = attention_weights.transpose(1, 2).reshape(N_ * M_, 1, Lq_, L_ * P_)
    output = (torch.stack(sampled, dim=-2).flatten(-2) * attention_weights).sum(-1)
    return output.view(N_, M_ * D_, Lq_).transpose(1, 2).contiguous()


class MSDeformAttn(nn.Module):
    """Multi-scale deformable attention, pure PyTorch.

    forward:
        query                (N, Lq, C)
        reference_points     (N, Lq, n_levels, 2), (x, y) in [0, 1], top-left (0, 0)
        input_flatten        (N, sum_l H_l*W_l, C)
        input_spatial_shapes list of (H_l, W_l)
        input_padding_mask   (N, sum_l H_l*W_l), True for padding elements, False for others
    """

    def __init__(self, d_model: int = 256, n_levels: int = 2, n_heads: int = 8, n_points: int = 4):
        super().__init__()
        if d_model % n_heads != 0:
            raise ValueError(f"d_model must be divisible by n_heads, but got {d_model} and {n_heads}")
        self.d_model, self.n_levels, self.n_heads, self.n_points = d_model, n_levels, n_heads, n_points
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)
        self._reset_parameters()

    def _reset_parameters(self):
        nn.init.zeros_(self.sampling_offsets.weight)
        thetas = torch.arange(self.n_heads, dtype=torch.float32) * (2.0 * math.pi / self.n_heads)
        grid = torch.stack([thetas.cos(), thetas.sin()], -1)
        grid = (grid / grid.abs().max(-1, keepdim=True)[0]).view(self.n_heads, 1, 1, 2)
        grid = grid.repeat(1, self.n_levels, self.n_points, 1)
        for i in range(self.n_points):
            grid[:, :, i, :] *= i + 1
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(grid.view(-1))
        # uniform weights over the points at the start
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        nn.init.xavier_uniform_(self.value_proj.weight)
        nn.init.zeros_(self.value_proj.bias)
        nn.init.xavier_uniform_(self.output_proj.weight)
        nn.init.zeros_(self.output_proj.bias)

    def forward(
        self,
        query: torch.Tensor,
        reference_points: torch.Tensor,
        input_flatten: torch.Tensor,
        input_spatial_shapes,
        input_padding_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        N, Len_q, _ = query.shape
        N, Len_in, _ = input_flatten.shape
        shapes = [(int(h), int(w)) for h, w in input_spatial_shapes]
        assert sum(h * w for h, w in shapes) == Len_in

        value = self.value_proj(input_flatten)
        if input_padding_mask is not None:
            value = value.masked_fill(input_padding_mask[..., None], 0.0)
        value = value.view(N, Len_in, self.n_heads, self.d_model // self.n_heads)

        offsets = self.sampling_offsets(query).view(N, Len_q, self.n_heads, self.n_levels, self.n_points, 2)
        weights = self.attention_weights(query).view(N, Len_q, self.n_heads, self.n_levels * self.n_points)
        weights = F.softmax(weights, -1).view(N, Len_q, self.n_heads, self.n_levels, self.n_points)

        # offsets are in pixels of their level: divide by (W, H), the order of (x, y)
        normalizer = query.new_tensor([[w, h] for h, w in shapes])
        locations = reference_points[:, :, None, :, None, :] + offsets / normalizer[None, None, None, :, None, :]
        return self.output_proj(ms_deform_attn_core_pytorch(value, shapes, locations, weights))
