import torch
import torch.nn as nn
import torch.nn.functional as F


def window_partition(x, ws):
    """(B, H, W, C) -> (B * nH * nW, ws * ws, C)"""
    B, H, W, C = x.shape
    x = x.reshape(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    C = windows.size(-1)
    x = windows.reshape(-1, H // ws, W // ws, ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, H, W, C)


class SwinBlock(nn.Module):
    """Swin transformer block on a fixed resolution, with optional cyclic shift.

    Args:
        dim: channels.
        resolution: (H, W), both divisible by ``window``.
        shift: 0 for W-MSA, ``window // 2`` for SW-MSA.
    """

    def __init__(self, dim=96, num_heads=3, resolution=(14, 14), window=7, shift=3, mlp_ratio=4.0, drop=0.0):
        super().__init__()
        H, W = resolution
        assert H % window == 0 and W % window == 0
        assert dim % num_heads == 0
        if min(H, W) <= window:
            shift = 0  # a single window: shifting would gain nothing
        assert 0 <= shift < window
        self.resolution, self.window, self.shift = (H, W), window, shift
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5

        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(drop), nn.Linear(hidden, dim))
        self.drop = nn.Dropout(drop)

        self.bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        ys, xs = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        coords = torch.stack([ys.flatten(), xs.flatten()], dim=-1)
        rel = coords[:, None, :] - coords[None, :, :] + (window - 1)
        self.register_buffer("bias_index", rel[..., 0] * (2 * window - 1) + rel[..., 1], persistent=False)
        self.register_buffer("shift_mask", self._shift_mask() if shift > 0 else None, persistent=False)

    def _shift_mask(self):
        """True where two tokens of one shifted window come from different regions of the image."""
        H, W = self.resolution
        region = torch.zeros(1, H, W, 1, dtype=torch.long)
        cuts = (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        n = 0
        for h in cuts:
            for w in cuts:
                region[:, h, w] = n
                n += 1
        region = window_partition(region, self.window).squeeze(-1)
        return region[:, :, None] != region[:, None, :]

    def attention(self, x):
        """x: (B * nW, N, C), windows of one image are consecutive."""
        BW, N, C = x.shape
        q, k, v = self.qkv(x).reshape(BW, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.bias_table[self.bias_index].permute(2, 0, 1)
        attn = attn + bias
        if self.shift_mask is not None:
            nW = self.shift_mask.size(0)
            attn = attn.reshape(BW // nW, nW, self.num_heads, N, N)
            attn = attn.masked_fill(self.shift_mask[None, :, None], float("-inf"))
            attn = attn.reshape(BW, self.num_heads, N, N)
        attn = F.softmax(attn, dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(BW, N, C))

    def forward(self, x):
        """x: (B, H * W, C)"""
        H, W = self.resolution
        B, L, C = x.shape
        assert L == H * W, "input does not have the resolution of this block"
        y = self.norm1(x).reshape(B, H, W, C)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = window_reverse(self.attention(window_partition(y, self.window)), self.window, H, W)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + self.drop(y.reshape(B, L, C))
        return x + self.drop(self.mlp(self.norm2(x)))
