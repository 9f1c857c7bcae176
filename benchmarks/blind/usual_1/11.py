import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def window_partition(x, ws):
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    B = windows.shape[0] // ((H // ws) * (W // ws))
    x = windows.view(B, H // ws, W // ws, ws, ws, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, -1)


class SwinV2ShiftedAttention(nn.Module):
    """Shifted window attention of Swin V2.

    Cosine similarity with a learned per-head temperature replaces the scaled dot product, and the
    relative position bias comes from a small MLP on log-spaced coordinates. There is a bias for
    q and v but none for k. Input: (B, H, W, C), H and W multiples of the window size.
    """

    def __init__(self, dim=64, num_heads=4, window_size=4, shift_size=2):
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift_size = shift_size
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones((num_heads, 1, 1))))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, 128), nn.ReLU(inplace=True), nn.Linear(128, num_heads, bias=False)
        )

        ws = window_size
        rel = torch.arange(-(ws - 1), ws, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(rel, rel, indexing="ij"), dim=-1)  # 2ws-1, 2ws-1, 2
        table = table / max(ws - 1, 1) * 8
        table = torch.sign(table) * torch.log2(torch.abs(table) + 1.0) / math.log2(8)
        self.register_buffer("relative_coords_table", table.view(-1, 2), persistent=False)

        pos = torch.arange(ws)
        coords = torch.stack(torch.meshgrid(pos, pos, indexing="ij")).flatten(1)
        diff = coords[:, :, None] - coords[:, None, :] + (ws - 1)
        self.register_buffer("relative_position_index", diff[0] * (2 * ws - 1) + diff[1], persistent=False)

        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def _shift_mask(self, H, W, device):
        ws, s = self.window_size, self.shift_size
        region = torch.zeros(1, H, W, 1, device=device)
        slices = (slice(0, -ws), slice(-ws, -s), slice(-s, None))
        for i, h in enumerate(slices):
            for j, w in enumerate(slices):
                region[:, h, w, :] = 3 * i + j
        region = window_partition(region, ws).squeeze(-1)
        different = region[:, None, :] != region[:, :, None]
        return torch.zeros_like(different, dtype=torch.float32).masked_fill(different, -100.0)

    def forward(self, x):
        B, H, W, C = x.shape
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(1, 2))
        x = window_partition(x, self.window_size)
        B_, N, _ = x.shape

        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()

        pos_bias = self.cpb_mlp(self.relative_coords_table)[self.relative_position_index.view(-1)]
        pos_bias = pos_bias.view(N, N, -1).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(pos_bias).unsqueeze(0)

        if self.shift_size > 0:
            mask = self._shift_mask(H, W, x.device).to(attn.dtype)
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N)

        out = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B_, N, C)
        out = window_reverse(self.proj(out), self.window_size, H, W)
        if self.shift_size > 0:
            out = torch.roll(out, shifts=(self.shift_size, self.shift_size), dims=(1, 2))
        return out
