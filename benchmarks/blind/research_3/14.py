import math

import torch
import torch.nn as nn


class AttnBlock(nn.Module):
    """Spatial self attention of the diffusion U-Net, x: [B, C, H, W]."""

    def __init__(self, channels=32, num_heads=4, num_groups=8):
        super().__init__()
        assert channels % num_heads == 0
        self.num_heads = num_heads
        self.norm = nn.GroupNorm(num_groups, channels, eps=1e-6)
        self.to_q = nn.Linear(channels, channels)
        self.to_k = nn.Linear(channels, channels)
        self.to_v = nn.Linear(channels, channels)
        self.proj_out = nn.Linear(channels, channels)

    def forward(self, x, temb=None):
        B, C, H, W = x.shape
        residual = x

        h = self.norm(x)
        if temb is not None:
            h = h + temb[:, :, None, None]
        h = h.reshape(B, C, H * W).permute(0, 2, 1)

        q = self.to_q(h).view(B, H * W, self.num_heads, -1).transpose(1, 2)
        k = self.to_k(h).view(B, H * W, self.num_heads, -1).transpose(1, 2)
        v = self.to_v(h).view(B, H * W, self.num_heads, -1).transpose(1, 2)

        w = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(C // self.num_heads)
        w = w.softmax(dim=-1)

        h = torch.matmul(w, v).transpose(1, 2).reshape(B, H * W, C)
        h = self.proj_out(h)
        h = h.reshape(B, C, H, W)
        return residual + h
