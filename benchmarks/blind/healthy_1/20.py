import math
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowAttentionV2(nn.Module):
    r"""Window attention of Swin V2: scaled cosine attention and a continuous log-spaced position bias.

    Args:
        dim (int): Number of input channels.
        window_size (tuple[int]): The height and width of the window.
        num_heads (int): Number of attention heads.
        qkv_bias (bool): Learnable bias for query and value; keys have none.
        pretrained_window_size (tuple[int]): Window of the pre-training run, (0, 0) if trained from scratch.
            Coordinates are normalised by it.
    """

    def __init__(
        self,
        dim: int = 96,
        window_size: Tuple[int, int] = (4, 6),
        num_heads: int = 4,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        pretrained_window_size: Tuple[int, int] = (0, 0),
    ):
        super().__init__()
        self.dim = dim
        self.window_size = tuple(window_size)
        self.pretrained_window_size = tuple(pretrained_window_size)
        self.num_heads = num_heads
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones((num_heads, 1, 1))))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, 512, bias=True), nn.ReLU(inplace=True), nn.Linear(512, num_heads, bias=False)
        )
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        if qkv_bias:
            self.q_bias = nn.Parameter(torch.zeros(dim))
            self.register_buffer("k_bias", torch.zeros(dim), persistent=False)
            self.v_bias = nn.Parameter(torch.zeros(dim))
        else:
            self.q_bias = None
            self.v_bias = None
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self._make_pair_wise_relative_positions()

    def _make_pair_wise_relative_positions(self):
        wh, ww = self.window_size
        rel_h = torch.arange(-(wh - 1), wh).float()
        rel_w = torch.arange(-(ww - 1), ww).float()
        table = torch.stack(torch.meshgrid(rel_h, rel_w, indexing="ij"), dim=-1)
        norm_h = (self.pretrained_window_size[0] or wh) - 1
        norm_w = (self.pretrained_window_size[1] or ww) - 1
        table[..., 0] /= max(norm_h, 1)
        table[..., 1] /= max(norm_w, 1)
        table *= 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("relative_coords_table", table, persistent=False)

        coords = torch.stack(torch.meshgrid(torch.arange(wh), torch.arange(ww), indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :]
        index = (rel[0] + wh - 1) * (2 * ww - 1) + (rel[1] + ww - 1)
        self.register_buffer("relative_position_index", index, persistent=False)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Args:
            x: (num_windows * B, Wh * Ww, C), windows of one image are consecutive.
            mask: additive (0 / -100) mask of shape (num_windows, Wh * Ww, Wh * Ww) or None.
        """
        B_, N, C = x.shape
        qkv_bias = None
        if self.q_bias is not None:
            qkv_bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
        qkv = F.linear(x, self.qkv.weight, qkv_bias)
        q, k, v = qkv.reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

        # cosine similarity with a learned temperature, there is no 1 / sqrt(d)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        logit_scale = torch.clamp(self.logit_scale, max=math.log(1.0 / 0.01)).exp()
        attn = attn * logit_scale

        bias_table = self.cpb_mlp(self.relative_coords_table).view(-1, self.num_heads)
        bias = bias_table[self.relative_position_index.view(-1)].view(N, N, -1)
        bias = 16 * torch.sigmoid(bias.permute(2, 0, 1))
        attn = attn + bias.unsqueeze(0)

        if mask is not None:
            num_win = mask.shape[0]
            attn = attn.view(-1, num_win, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj_drop(self.proj(x))
