import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowAttentionV2(nn.Module):
    """Swin V2 window attention: scaled cosine similarity and a continuous relative position bias.

    The logits are cosines times a learned temperature per head, clamped at 100. As in the paper, the
    key projection has no bias.

    x: (num_windows * B, N, C), mask: (num_windows, N, N) additive or None
    """

    def __init__(self, dim=32, window_size=(4, 4), num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 64), nn.ReLU(inplace=True), nn.Linear(64, num_heads, bias=False))

        wh, ww = window_size
        table = torch.stack(
            torch.meshgrid(
                torch.arange(-(wh - 1), wh, dtype=torch.float32),
                torch.arange(-(ww - 1), ww, dtype=torch.float32),
                indexing="ij",
            ),
            dim=-1,
        )
        table = table / torch.tensor([max(wh - 1, 1), max(ww - 1, 1)]) * 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / 3.0
        self.register_buffer("coords_table", table.view(-1, 2), persistent=False)

        grid = torch.stack(torch.meshgrid(torch.arange(wh), torch.arange(ww), indexing="ij")).flatten(1)
        rel = grid[:, :, None] - grid[:, None, :]
        index = (rel[0] + wh - 1) * (2 * ww - 1) + rel[1] + ww - 1
        self.register_buffer("rel_index", index, persistent=False)

        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        Bn, N, C = x.shape
        bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.reshape(Bn, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()
        rpb = self.cpb_mlp(self.coords_table)[self.rel_index]
        attn = attn + 16 * torch.sigmoid(rpb.permute(2, 0, 1)).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(Bn // nW, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(Bn, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(Bn, N, C))
