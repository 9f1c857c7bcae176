import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowAttentionV2(nn.Module):
    """Window attention of Swin V2.

    Scores are cosines divided by a learned temperature per head (never below 0.01), so no 1/sqrt(d) appears.
    The relative bias comes from a small network on log-spaced coordinates and is bounded to (0, 16). The key
    projection has no bias.
    """

    def __init__(self, dim=96, window_size=4, num_heads=3, cpb_hidden=128):
        super().__init__()
        self.dim = dim
        self.window_size = window_size
        self.num_heads = num_heads

        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones((num_heads, 1, 1))))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, cpb_hidden), nn.ReLU(inplace=True), nn.Linear(cpb_hidden, num_heads, bias=False)
        )

        span = torch.arange(-(window_size - 1), window_size, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(span, span, indexing="ij"), dim=-1)
        table = table * 8 / max(window_size - 1, 1)
        table = torch.sign(table) * torch.log2(torch.abs(table) + 1.0) / math.log2(8)
        self.register_buffer("relative_coords_table", table.view(-1, 2), persistent=False)

        ax = torch.arange(window_size)
        coords = torch.stack(torch.meshgrid(ax, ax, indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :] + (window_size - 1)
        self.register_buffer("relative_position_index", rel[0] * (2 * window_size - 1) + rel[1], persistent=False)

        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        """
        x: (num_windows * B, N, C)
        mask: (num_windows, N, N), 0 for allowed pairs and -100 for pairs from different regions
        """
        B_, N, C = x.shape
        qkv_bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, qkv_bias)
        q, k, v = qkv.reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        logit_scale = torch.clamp(self.logit_scale, max=math.log(1.0 / 0.01)).exp()
        attn = attn * logit_scale

        bias_table = self.cpb_mlp(self.relative_coords_table)
        bias = bias_table[self.relative_position_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = attn + (16 * torch.sigmoid(bias)).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)

        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)
