import torch
import torch.nn as nn


def window_partition(x, ws):
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    C = windows.shape[-1]
    x = windows.view(-1, H // ws, W // ws, ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, H, W, C)


class ShiftedWindowAttention(nn.Module):
    """Shifted-window attention on a fixed resolution. x: (B, H * W, C) -> (B, H * W, C).

    After the cyclic shift a border window holds patches from opposite sides of the image;
    the additive mask (-100) keeps those apart.
    """

    def __init__(self, dim=64, input_resolution=(8, 8), num_heads=4, window_size=4, shift_size=2):
        super().__init__()
        H, W = input_resolution
        assert H % window_size == 0 and W % window_size == 0
        assert 0 <= shift_size < window_size
        self.resolution = (H, W)
        self.ws = window_size
        self.ss = shift_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

        mask = None
        if shift_size > 0:
            region = torch.zeros(1, H, W, 1)
            slices = (slice(0, -window_size), slice(-window_size, -shift_size), slice(-shift_size, None))
            cnt = 0
            for hs in slices:
                for vs in slices:
                    region[:, hs, vs, :] = cnt
                    cnt += 1
            win = window_partition(region, window_size).squeeze(-1)
            diff = win[:, None, :] - win[:, :, None]
            mask = torch.zeros_like(diff).masked_fill(diff != 0, -100.0)
        self.register_buffer("attn_mask", mask)

    def forward(self, x):
        H, W = self.resolution
        B, L, C = x.shape
        assert L == H * W, "input feature has wrong size"
        x = x.view(B, H, W, C)
        if self.ss > 0:
            x = torch.roll(x, shifts=(-self.ss, -self.ss), dims=(1, 2))
        x = window_partition(x, self.ws)

        nW, N = (H // self.ws) * (W // self.ws), self.ws * self.ws
        q, k, v = self.qkv(x).reshape(B * nW, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        if self.attn_mask is not None:
            attn = attn.view(B, nW, self.num_heads, N, N) + self.attn_mask[None, :, None]
            attn = attn.view(B * nW, self.num_heads, N, N)
        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B * nW, N, C)

        x = window_reverse(self.proj(x), self.ws, H, W)
        if self.ss > 0:
            x = torch.roll(x, shifts=(self.ss, self.ss), dims=(1, 2))
        return x.reshape(B, L, C)
