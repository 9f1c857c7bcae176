import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowAttentionV2(nn.Module):
    """Window attention of Swin Transformer V2: scaled cosine similarity and a continuous position bias.

    Args:
        dim: input channels.
        window_size: side of the (square) window.
        num_heads: number of heads. Each one learns its own temperature, which starts at 10 and may reach 100.
    """

    def __init__(self, dim: int = 96, window_size: int = 7, num_heads: int = 3, attn_drop: float = 0.0,
                 proj_drop: float = 0.0):
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        ws = window_size
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(inplace=True), nn.Linear(512, num_heads, bias=False))

        offsets = torch.arange(-(ws - 1), ws, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), dim=-1)
        table = table * (8.0 / max(ws - 1, 1))
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("relative_coords_table", table.view(-1, 2), persistent=False)

        grid = torch.arange(ws)
        coords = torch.stack(torch.meshgrid(grid, grid, indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :] + (ws - 1)
        self.register_buffer("relative_position_index", rel[0] * (2 * ws - 1) + rel[1], persistent=False)

        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: [num_windows * B, N, C]; mask: additive [num_windows, N, N] or None."""
        b_, n, c = x.shape
        qkv_bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        qkv = F.linear(x, self.qkv.weight, qkv_bias)
        q, k, v = qkv.view(b_, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale.exp(), max=math.log(1.0 / 0.01))

        bias = self.cpb_mlp(self.relative_coords_table)[self.relative_position_index.view(-1)]
        bias = bias.view(n, n, self.num_heads).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(bias).unsqueeze(0)

        if mask is not None:
            nw = mask.shape[0]
            attn = attn.view(b_ // nw, nw, self.num_heads, n, n) + mask[None, :, None]
            attn = attn.view(b_, self.num_heads, n, n)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(b_, n, c)
        return self.proj_drop(self.proj(x))
