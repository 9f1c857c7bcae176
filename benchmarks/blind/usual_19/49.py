import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ShiftedWindowAttentionV2(nn.Module):
    """Shifted window attention of Swin Transformer V2 on a (B, H, W, C) map.

    Cosine attention: q and k are normalised, the logits are multiplied by a learned scale per head
    (at most 100), and a small MLP over log-spaced offsets gives the position bias,
    bounded to (0, 16) by a sigmoid. The key projection has no bias.
    H and W must be multiples of the window size.
    """

    def __init__(self, dim=64, num_heads=4, window_size=4, shift_size=2):
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift_size = shift_size
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, 128), nn.ReLU(inplace=True), nn.Linear(128, num_heads, bias=False)
        )
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

        ws = window_size
        offsets = torch.arange(-(ws - 1), ws, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), dim=-1)
        table = table * 8 / max(ws - 1, 1)
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("coords_table", table.view(-1, 2), persistent=False)

        ys, xs = torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")
        ys, xs = ys.flatten(), xs.flatten()
        index = (ys[:, None] - ys[None, :] + ws - 1) * (2 * ws - 1) + (xs[:, None] - xs[None, :] + ws - 1)
        self.register_buffer("index", index, persistent=False)

    def partition(self, x):
        B, H, W, C = x.shape
        ws = self.window_size
        x = x.view(B, H // ws, ws, W // ws, ws, C).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, ws * ws, C)

    def merge(self, windows, H, W):
        ws = self.window_size
        x = windows.view(-1, H // ws, W // ws, ws, ws, windows.size(-1)).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, H, W, windows.size(-1))

    def shift_mask(self, H, W, device):
        region = torch.zeros(1, H, W, 1, device=device)
        slices = (
            slice(0, -self.window_size),
            slice(-self.window_size, -self.shift_size),
            slice(-self.shift_size, None),
        )
        for i, rows in enumerate(slices):
            for j, cols in enumerate(slices):
                region[:, rows, cols, :] = 3 * i + j
        region = self.partition(region).squeeze(-1)
        return region.unsqueeze(1) != region.unsqueeze(2)

    def forward(self, x):
        B, H, W, C = x.shape
        s = self.shift_size
        if s > 0:
            x = torch.roll(x, shifts=(-s, -s), dims=(1, 2))
        windows = self.partition(x)
        B_, N, _ = windows.shape

        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(windows, self.qkv.weight, bias)
        q, k, v = qkv.view(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()
        position = self.cpb_mlp(self.coords_table)[self.index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(position)

        if s > 0:
            blocked = self.shift_mask(H, W, x.device)
            attn = attn.view(B, -1, self.num_heads, N, N).masked_fill(blocked[None, :, None], float("-inf"))
            attn = attn.view(B_, self.num_heads, N, N)

        y = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B_, N, C)
        y = self.merge(self.proj(y), H, W)
        if s > 0:
            y = torch.roll(y, shifts=(s, s), dims=(1, 2))
        return y
