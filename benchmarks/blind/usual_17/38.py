import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowAttentionV2(nn.Module):
    """Swin V2 window attention: cosine logits, clamped learned temperature, and a continuous
    position bias from a small MLP on log-spaced offsets.

    x: (num_windows * B, Wh * Ww, C); mask: additive (num_windows, N, N) with 0 / -100, or None
    """

    def __init__(self, dim=32, window_size=(4, 4), num_heads=4):
        super().__init__()
        self.window_size = window_size
        self.num_heads = num_heads
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 64), nn.ReLU(inplace=True), nn.Linear(64, num_heads, bias=False))
        # the key has no bias: it would cancel or be swallowed by the normalisation
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

        wh, ww = window_size
        rh = torch.arange(-(wh - 1), wh, dtype=torch.float32) / max(wh - 1, 1)
        rw = torch.arange(-(ww - 1), ww, dtype=torch.float32) / max(ww - 1, 1)
        table = torch.stack(torch.meshgrid(rh, rw, indexing="ij"), dim=-1) * 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("relative_coords_table", table, persistent=False)

        coords = torch.stack(torch.meshgrid(torch.arange(wh), torch.arange(ww), indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :]
        index = (rel[0] + wh - 1) * (2 * ww - 1) + rel[1] + ww - 1
        self.register_buffer("relative_position_index", index, persistent=False)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        qkv_bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, qkv_bias)
        q, k, v = qkv.reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(1.0 / 0.01)).exp()

        table = self.cpb_mlp(self.relative_coords_table).view(-1, self.num_heads)
        bias = table[self.relative_position_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(bias).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))
