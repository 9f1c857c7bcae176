import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SwinV2Block(nn.Module):
    """Swin V2 block: scaled cosine attention, continuous position bias, res-post-norm.

    Input (B, H, W, C) with H and W divisible by ``window``. The norm is applied to the output of each
    branch, right before it is added to the residual stream. The key has no bias, as in the paper's code.
    """

    def __init__(self, dim: int = 32, heads: int = 4, window: int = 4, shift: int = 2, mlp_ratio: int = 4):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 128), nn.ReLU(inplace=True), nn.Linear(128, heads, bias=False))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim))

        axis = torch.arange(window)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).view(-1, 2)
        rel = (grid[:, None] - grid[None, :]).float() / max(window - 1, 1) * 8
        self.register_buffer("rel", torch.sign(rel) * torch.log2(rel.abs() + 1.0) / 3.0, persistent=False)

    def to_windows(self, x):
        b, h, w, c = x.shape
        s = self.window
        return x.view(b, h // s, s, w // s, s, c).transpose(2, 3).reshape(b, -1, s * s, c)

    def from_windows(self, x, h, w):
        b, s = x.shape[0], self.window
        return x.view(b, h // s, w // s, s, s, -1).transpose(2, 3).reshape(b, h, w, -1)

    def region_mask(self, h, w, device):
        def labels(n):
            pos = torch.arange(n, device=device)
            return (pos >= n - self.window).long() + (pos >= n - self.shift).long()

        region = labels(h)[:, None] * 3 + labels(w)[None, :]
        region = self.to_windows(region[None, :, :, None])[0, :, :, 0]
        return region[:, :, None] == region[:, None, :]  # (windows, n, n)

    def attend(self, x):
        b, h, w, c = x.shape
        if self.shift:
            x = x.roll((-self.shift, -self.shift), dims=(1, 2))
        x = self.to_windows(x)
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()
        attn = attn + 16 * torch.sigmoid(self.cpb_mlp(self.rel)).permute(2, 0, 1)
        if self.shift:
            same = self.region_mask(h, w, x.device)[None, :, None]
            attn = attn.masked_fill(~same, float("-inf"))
        y = (attn.softmax(dim=-1) @ v).transpose(2, 3).flatten(3)
        y = self.from_windows(self.proj(y), h, w)
        if self.shift:
            y = y.roll((self.shift, self.shift), dims=(1, 2))
        return y

    def forward(self, x):
        x = x + self.norm1(self.attend(x))
        return x + self.norm2(self.mlp(x))
