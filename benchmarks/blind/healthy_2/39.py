"""Tiny Swin transformer: shifted-window attention for 32 x 32 images."""
import torch
import torch.nn as nn


def window_partition(x, ws):
    """(B, H, W, C) -> (B * num_windows, ws * ws, C)"""
    B, H, W, C = x.shape
    x = x.reshape(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    C = windows.size(-1)
    x = windows.reshape(-1, H // ws, W // ws, ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, H, W, C)


class WindowAttention(nn.Module):
    def __init__(self, dim, ws, num_heads, dropout):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.bias_table = nn.Parameter(torch.zeros((2 * ws - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        axis = torch.arange(ws)
        coords = torch.stack(torch.meshgrid(axis, axis, indexing="ij")).flatten(1)  # (2, ws * ws)
        rel = coords[:, :, None] - coords[:, None, :] + ws - 1  # each in 0 .. 2 * ws - 2
        self.register_buffer("rel_index", rel[0] * (2 * ws - 1) + rel[1], persistent=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn + self.bias_table[self.rel_index].permute(2, 0, 1)
        if mask is not None:  # (num_windows, t, t), windows vary fastest within the batch axis
            nw = mask.size(0)
            attn = attn.view(n // nw, nw, self.num_heads, t, t).masked_fill(mask[None, :, None], float("-inf"))
            attn = attn.view(n, self.num_heads, t, t)
        attn = self.drop(attn.softmax(dim=-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(n, t, c))


class SwinBlock(nn.Module):
    def __init__(self, dim, resolution, num_heads, ws, shift, dropout):
        super().__init__()
        assert resolution % ws == 0
        if resolution == ws:  # a single window: nothing to shift
            shift = 0
        self.ws, self.shift = ws, shift
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, ws, num_heads, dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))
        mask = None
        if shift:
            # label the regions that the cyclic shift brings together from opposite borders
            region = torch.zeros(1, resolution, resolution, 1)
            cuts = (slice(0, -ws), slice(-ws, -shift), slice(-shift, None))
            for i, rows in enumerate(cuts):
                for j, cols in enumerate(cuts):
                    region[:, rows, cols, :] = 3 * i + j
            ids = window_partition(region, ws).squeeze(-1)
            mask = ids[:, None, :] != ids[:, :, None]
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        _, H, W, _ = x.shape
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = self.attn(window_partition(y, self.ws), self.mask)
        y = window_reverse(y, self.ws, H, W)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], dim=-1)
        return self.reduction(self.norm(x))


class TinySwin(nn.Module):
    def __init__(self, img_size=32, patch_size=2, in_chans=3, num_classes=10, dim=48,
                 depths=(2, 2), num_heads=(3, 6), window_size=4, dropout=0.0):
        super().__init__()
        assert img_size % patch_size == 0
        self.patch_embed = nn.Conv2d(in_chans, dim, patch_size, stride=patch_size)
        self.patch_norm = nn.LayerNorm(dim)
        resolution = img_size // patch_size
        stages = []
        for s, (depth, heads) in enumerate(zip(depths, num_heads)):
            if s > 0:
                assert resolution % 2 == 0
                stages.append(PatchMerging(dim))
                dim, resolution = 2 * dim, resolution // 2
            for i in range(depth):
                shift = 0 if i % 2 == 0 else window_size // 2
                stages.append(SwinBlock(dim, resolution, heads, window_size, shift, dropout))
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images):
        x = self.patch_norm(self.patch_embed(images).permute(0, 2, 3, 1))
        x = self.norm(self.stages(x))
        return self.head(x.mean(dim=(1, 2)))
