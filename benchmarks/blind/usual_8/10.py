import torch
import torch.nn as nn


def window_partition(x, ws):
    """(B, H, W, C) -> (B * num_windows, ws, ws, C)"""
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, ws, ws, C)


def window_reverse(windows, ws, H, W):
    """(B * num_windows, ws, ws, C) -> (B, H, W, C)"""
    B = windows.shape[0] // ((H // ws) * (W // ws))
    x = windows.view(B, H // ws, W // ws, ws, ws, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        n = 2 * window_size - 1
        self.relative_position_bias_table = nn.Parameter(torch.zeros(n * n, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

        r = torch.arange(window_size)
        coords = torch.stack(torch.meshgrid(r, r, indexing="ij")).flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window_size - 1
        self.register_buffer("relative_position_index", rel[..., 0] * n + rel[..., 1])

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)

        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        attn = attn + bias.view(N, N, -1).permute(2, 0, 1).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(nW, B_ // nW, self.num_heads, N, N) + mask[:, None, None]
            attn = attn.view(-1, self.num_heads, N, N)

        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)


class SwinBlock(nn.Module):
    """Swin Transformer block.

    Args:
        dim: channels
        resolution: side of the feature map
        num_heads: attention heads
        window_size: side of a window
        shift_size: cyclic shift, 0 for plain windows
    """

    def __init__(self, dim=48, resolution=8, num_heads=3, window_size=4, shift_size=2, mlp_ratio=4.0):
        super().__init__()
        self.resolution = resolution
        self.window_size = window_size
        self.shift_size = shift_size
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

        attn_mask = None
        if shift_size > 0:
            img = torch.zeros(1, resolution, resolution, 1)
            parts = (
                slice(0, -window_size),
                slice(-window_size, -shift_size),
                slice(-shift_size, None),
            )
            cnt = 0
            for h in parts:
                for w in parts:
                    img[:, h, w, :] = cnt
                    cnt += 1
            ids = window_partition(img, window_size).view(-1, window_size * window_size)
            diff = ids.unsqueeze(1) - ids.unsqueeze(2)
            attn_mask = torch.zeros_like(diff).masked_fill(diff != 0, -100.0)
        self.register_buffer("attn_mask", attn_mask)

    def forward(self, x):
        """x: (B, H * W, C)"""
        H = W = self.resolution
        B, L, C = x.shape
        shortcut = x
        x = self.norm1(x).view(B, H, W, C)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(1, 2))
        windows = window_partition(x, self.window_size).view(-1, self.window_size ** 2, C)
        windows = self.attn(windows, mask=self.attn_mask)
        x = window_reverse(windows.view(-1, self.window_size, self.window_size, C), self.window_size, H, W)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(self.shift_size, self.shift_size), dims=(1, 2))
        x = shortcut + x.reshape(B, L, C)
        return x + self.mlp(self.norm2(x))
