import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineWindowAttention(nn.Module):
    """Scaled cosine attention of Swin V2 with log-spaced continuous position bias.

    logits = cos(q, k) * exp(logit_scale) + 16 * sigmoid(bias), with the scale clamped to 100.
    """

    def __init__(self, dim=64, window_size=4, num_heads=4):
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.window_size = window_size
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, 128), nn.ReLU(inplace=True), nn.Linear(128, num_heads, bias=False))

        w = window_size
        rel = torch.arange(-(w - 1), w, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(rel, rel, indexing="ij"), dim=-1)
        table = table / max(w - 1, 1) * 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("relative_coords_table", table.view(-1, 2), persistent=False)

        coords = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        diff = (coords[:, :, None] - coords[:, None, :]) + (w - 1)
        index = diff[0] * (2 * w - 1) + diff[1]
        self.register_buffer("relative_position_index", index, persistent=False)

        # no bias on the keys
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        """x: (num_windows * B, window_size ** 2, C)"""
        B_, N, C = x.shape
        qkv_bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, qkv_bias)
        q, k, v = qkv.reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()

        bias = self.cpb_mlp(self.relative_coords_table)[self.relative_position_index.view(-1)]
        bias = bias.view(N, N, -1).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(bias).unsqueeze(0)

        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)
