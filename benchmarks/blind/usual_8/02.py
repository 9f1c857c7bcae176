import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineWindowAttention(nn.Module):
    """Window attention of Swin Transformer V2.

    Similarities are cosines, multiplied with a learned per-head factor (at most 100);
    there is therefore no division by sqrt(head_dim). The position bias comes from a small
    MLP on log-spaced relative coordinates and is squashed to (0, 16). As in the paper the
    key projection has no bias.

    Args:
        dim: channels
        window_size: side of the (square) window
        num_heads: number of heads
    """

    def __init__(self, dim=96, window_size=7, num_heads=3, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.dim = dim
        self.window_size = window_size
        self.num_heads = num_heads

        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, 512), nn.ReLU(inplace=True), nn.Linear(512, num_heads, bias=False)
        )

        rng = torch.arange(-(window_size - 1), window_size, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(rng, rng, indexing="ij"), dim=-1)
        table = table / max(window_size - 1, 1) * 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("coords_table", table.view(-1, 2), persistent=False)

        c = torch.arange(window_size)
        coords = torch.stack(torch.meshgrid(c, c, indexing="ij")).flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window_size - 1
        index = rel[..., 0] * (2 * window_size - 1) + rel[..., 1]
        self.register_buffer("rel_index", index, persistent=False)

        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x, mask=None):
        """
        x: (num_windows * B, N, C) with N = window_size ** 2
        mask: (num_windows, N, N), 0 or a large negative number, or None
        """
        B_, N, C = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        qkv = qkv.reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()

        pos = self.cpb_mlp(self.coords_table)[self.rel_index.view(-1)].view(N, N, self.num_heads)
        attn = attn + 16 * torch.sigmoid(pos.permute(2, 0, 1)).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N)

        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj_drop(self.proj(x))
