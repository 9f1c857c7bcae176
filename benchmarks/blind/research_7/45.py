import torch
import torch.nn as nn


def window_partition(x, ws):
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    B = windows.shape[0] // ((H // ws) * (W // ws))
    x = windows.view(B, H // ws, W // ws, ws, ws, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, -1)


class ShiftedWindowBlock(nn.Module):
    """Window attention with a cyclic shift. x: [B, H, W, C], H and W multiples of the window."""

    def __init__(self, dim=32, num_heads=4, window_size=4, shift_size=2, mlp_ratio=4.0):
        super().__init__()
        self.num_heads = num_heads
        self.ws = window_size
        self.shift = shift_size
        self.scale = (dim // num_heads) ** -0.5
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

        self.bias_table = nn.Parameter(torch.zeros((2 * self.ws - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        c = torch.stack(torch.meshgrid(torch.arange(self.ws), torch.arange(self.ws), indexing="ij")).flatten(1)
        rel = (c[:, :, None] - c[:, None, :]) + self.ws - 1
        self.register_buffer("bias_index", rel[0] * (2 * self.ws - 1) + rel[1], persistent=False)

    def shift_mask(self, H, W, device):
        region = torch.zeros(1, H, W, 1, device=device)
        spans = (slice(0, -self.ws), slice(-self.ws, -self.shift), slice(-self.shift, None))
        n = 0
        for hs in spans:
            for wss in spans:
                region[:, hs, wss] = n
                n += 1
        ids = window_partition(region, self.ws).squeeze(-1)
        return ids[:, :, None] != ids[:, None, :]

    def attention(self, win, blocked):
        n, t, C = win.shape
        q, k, v = self.qkv(win).view(n, t, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        a = (q * self.scale) @ k.transpose(-2, -1)
        a = a + self.bias_table[self.bias_index].permute(2, 0, 1)
        if blocked is not None:
            nw = blocked.size(0)
            a = a.view(n // nw, nw, self.num_heads, t, t).masked_fill(blocked[None, :, None], -100.0).view(n, self.num_heads, t, t)
        y = a.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(n, t, C))

    def forward(self, x):
        B, H, W, C = x.shape
        h = self.norm1(x)
        blocked = None
        if self.shift > 0:
            h = torch.roll(h, shifts=(-self.shift, -self.shift), dims=(1, 2))
            blocked = self.shift_mask(H, W, x.device)
        h = self.attention(window_partition(h, self.ws), blocked)
        h = window_reverse(h, self.ws, H, W)
        if self.shift > 0:
            h = torch.roll(h, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = x + h
        return x + self.mlp(self.norm2(x))
