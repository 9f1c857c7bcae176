import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def window_partition(x, ws):
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    C = windows.shape[-1]
    x = windows.view(-1, H // ws, W // ws, ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, H, W, C)


class ShiftedWindowBlockV2(nn.Module):
    """Swin V2 block on (B, H, W, C) maps.

    Cosine attention with a clamped learned logit scale, continuous log-spaced position bias from a
    small MLP, and residual post-norm (the norm sits on the branch, the trunk is never normalised).
    The key projection has no bias. H and W must be multiples of ``window_size``.
    """

    def __init__(self, dim=32, num_heads=4, window_size=4, shift_size=2, mlp_ratio=4.0):
        super().__init__()
        assert 0 <= shift_size < window_size
        self.dim = dim
        self.num_heads = num_heads
        self.ws = window_size
        self.shift = shift_size

        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, 512), nn.ReLU(inplace=True), nn.Linear(512, num_heads, bias=False)
        )
        self.proj = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

        ws = window_size
        rel = torch.arange(-(ws - 1), ws, dtype=torch.float32)
        table = torch.stack(torch.meshgrid(rel, rel, indexing="ij"), dim=-1)
        table = table / max(ws - 1, 1) * 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)
        self.register_buffer("coords_table", table.view(-1, 2), persistent=False)

        axis = torch.arange(ws)
        coords = torch.stack(torch.meshgrid(axis, axis, indexing="ij")).flatten(1)
        diff = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + ws - 1
        index = diff[..., 0] * (2 * ws - 1) + diff[..., 1]
        self.register_buffer("rel_index", index, persistent=False)

    def _shift_mask(self, H, W, device):
        def region(n):
            r = torch.zeros(n, dtype=torch.long, device=device)
            r[n - self.ws:] = 1
            r[n - self.shift:] = 2
            return r

        ids = region(H)[:, None] * 3 + region(W)[None, :]
        ids = window_partition(ids.view(1, H, W, 1), self.ws).squeeze(-1)
        return ids[:, :, None] != ids[:, None, :]

    def _attend(self, x, mask):
        n_win, N, C = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.reshape(n_win, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()

        table = self.cpb_mlp(self.coords_table)
        pos_bias = table[self.rel_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = attn + 16 * torch.sigmoid(pos_bias)

        if mask is not None:
            n_mask = mask.shape[0]
            attn = attn.view(n_win // n_mask, n_mask, self.num_heads, N, N)
            attn = attn.masked_fill(mask[None, :, None], -100.0)
            attn = attn.view(n_win, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(n_win, N, C))

    def forward(self, x):
        B, H, W, C = x.shape
        shortcut = x
        shift = self.shift if min(H, W) > self.ws else 0
        mask = None
        if shift > 0:
            x = torch.roll(x, shifts=(-shift, -shift), dims=(1, 2))
            mask = self._shift_mask(H, W, x.device)
        y = self._attend(window_partition(x, self.ws), mask)
        y = window_reverse(y, self.ws, H, W)
        if shift > 0:
            y = torch.roll(y, shifts=(shift, shift), dims=(1, 2))
        x = shortcut + self.norm1(y)
        return x + self.norm2(self.mlp(x))
