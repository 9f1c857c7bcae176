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


class SwinBlock(nn.Module):
    def __init__(self, dim=32, num_heads=4, input_resolution=(8, 8), window_size=4, shift_size=2, mlp_ratio=2.0):
        super().__init__()
        self.H, self.W = input_resolution
        self.num_heads = num_heads
        self.ws, self.shift = window_size, shift_size
        self.scale = (dim // num_heads) ** -0.5
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

        ws = window_size
        self.rpb_table = nn.Parameter(torch.zeros((2 * ws - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.rpb_table, std=0.02)
        coords = torch.stack(torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :] + (ws - 1)
        self.register_buffer("rpb_index", rel[0] * (2 * ws - 1) + rel[1])

        mask = None
        if shift_size > 0:
            region = torch.zeros(1, self.H, self.W, 1)
            slices = (slice(0, -ws), slice(-ws, -shift_size), slice(-shift_size, None))
            cnt = 0
            for hs in slices:
                for wsl in slices:
                    region[:, hs, wsl] = cnt
                    cnt += 1
            ids = window_partition(region, ws).squeeze(-1)
            mask = (ids[:, None, :] != ids[:, :, None]).float() * -100.0
        self.register_buffer("attn_mask", mask)

    def _attend(self, x):
        Bn, N, C = x.shape
        q, k, v = self.qkv(x).reshape(Bn, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn + self.rpb_table[self.rpb_index].permute(2, 0, 1)
        if self.attn_mask is not None:
            nW = self.attn_mask.shape[0]
            attn = attn.view(Bn // nW, nW, self.num_heads, N, N) + self.attn_mask[None, :, None]
            attn = attn.view(Bn, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(Bn, N, C))

    def forward(self, x):
        """x: (B, H * W, C)"""
        B, L, C = x.shape
        shortcut = x
        x = self.norm1(x).view(B, self.H, self.W, C)
        if self.shift > 0:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = self._attend(window_partition(x, self.ws))
        x = window_reverse(windows, self.ws, self.H, self.W)
        x = shortcut + x.view(B, L, C)
        return x + self.mlp(self.norm2(x))
