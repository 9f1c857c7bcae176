import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineWindowAttention(nn.Module):
    """Swin V2 attention inside one window: scaled cosine similarity, continuous position bias.

    The temperature is learned in log space per head and capped at 100. The key projection has
    no bias. The position bias is squashed to (0, 16).
    """

    def __init__(self, dim=64, window_size=(4, 4), num_heads=4):
        super().__init__()
        self.window_size = window_size
        self.num_heads = num_heads
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, 128), nn.ReLU(inplace=True), nn.Linear(128, num_heads, bias=False)
        )
        wh, ww = window_size
        rh = torch.arange(-(wh - 1), wh, dtype=torch.float32)
        rw = torch.arange(-(ww - 1), ww, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(rh, rw, indexing="ij"), dim=-1)
        table[..., 0] /= max(wh - 1, 1)
        table[..., 1] /= max(ww - 1, 1)
        table = table * 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("coords_table", table, persistent=False)

        coords = torch.stack(torch.meshgrid(torch.arange(wh), torch.arange(ww), indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :]
        index = (rel[0] + wh - 1) * (2 * ww - 1) + rel[1] + ww - 1
        self.register_buffer("relative_index", index, persistent=False)

        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        """x: (num_windows * B, N, C); mask: (num_windows, N, N), additive."""
        B_, N, C = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()

        pos = self.cpb_mlp(self.coords_table).view(-1, self.num_heads)
        pos = pos[self.relative_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(pos).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N)

        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)
