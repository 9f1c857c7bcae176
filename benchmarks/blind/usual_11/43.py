import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowAttentionV2(nn.Module):
    """
    Window attention of Swin Transformer V2: scaled cosine similarity with a learned temperature per head
    (at most 100) and a continuous, log-spaced relative position bias in (0, 16). Queries and values have a
    projection bias, keys do not.

    x: (num_windows * B, window_size ** 2, dim)
    mask: additive (num_windows, N, N), 0 or -inf, or None
    """

    def __init__(self, dim=64, num_heads=4, window_size=4, qkv_bias=True, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, 128, bias=True), nn.ReLU(inplace=True), nn.Linear(128, num_heads, bias=False)
        )

        offsets = torch.arange(-(window_size - 1), window_size, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), dim=-1)
        table = table / max(window_size - 1, 1) * 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("relative_coords_table", table, persistent=False)

        coords = torch.arange(window_size)
        coords = torch.stack(torch.meshgrid(coords, coords, indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :] + window_size - 1
        index = rel[0] * (2 * window_size - 1) + rel[1]
        self.register_buffer("relative_position_index", index, persistent=False)

        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        if qkv_bias:
            self.q_bias = nn.Parameter(torch.zeros(dim))
            self.v_bias = nn.Parameter(torch.zeros(dim))
        else:
            self.q_bias = None
            self.v_bias = None
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        bias = None
        if self.q_bias is not None:
            bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()

        table = self.cpb_mlp(self.relative_coords_table).view(-1, self.num_heads)
        rpb = table[self.relative_position_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(rpb).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = self.attn_drop(attn.softmax(dim=-1))

        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj_drop(self.proj(x))
