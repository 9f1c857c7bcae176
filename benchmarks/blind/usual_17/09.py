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


class ShiftedWindowAttention(nn.Module):
    """Swin-style (shifted) window attention over a (B, H, W, C) feature map.

    H and W must be multiples of ``window_size``.
    """

    def __init__(self, dim=32, num_heads=4, window_size=4, shift_size=2):
        super().__init__()
        self.num_heads = num_heads
        self.ws = window_size
        self.shift = shift_size
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)

        coords = torch.stack(torch.meshgrid(torch.arange(window_size), torch.arange(window_size), indexing="ij"))
        coords = coords.flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window_size - 1
        self.register_buffer("rel_index", rel[..., 0] * (2 * window_size - 1) + rel[..., 1], persistent=False)

    def _shift_mask(self, H, W, device):
        region = torch.zeros(1, H, W, 1, device=device)
        slices = (slice(0, -self.ws), slice(-self.ws, -self.shift), slice(-self.shift, None))
        cnt = 0
        for hs in slices:
            for wss in slices:
                region[:, hs, wss, :] = cnt
                cnt += 1
        ids = window_partition(region, self.ws).squeeze(-1)
        return (ids.unsqueeze(1) != ids.unsqueeze(2)).float() * -100.0

    def forward(self, x):
        B, H, W, C = x.shape
        N = self.ws * self.ws
        if self.shift > 0:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        win = window_partition(x, self.ws)

        qkv = self.qkv(win).reshape(-1, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        bias = self.bias_table[self.rel_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = attn + bias.unsqueeze(0)
        if self.shift > 0:
            mask = self._shift_mask(H, W, x.device)
            nW = mask.shape[0]
            attn = attn.view(B, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)

        out = (attn @ v).transpose(1, 2).reshape(-1, N, C)
        out = window_reverse(self.proj(out), self.ws, H, W)
        if self.shift > 0:
            out = torch.roll(out, shifts=(-self.shift, -self.shift), dims=(1, 2))
        return out
