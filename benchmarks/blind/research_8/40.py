import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineWindowBlock(nn.Module):
    """Swin Transformer V2 block without shift.

    Cosine similarity with a learned temperature per head (clamped at 100) replaces the dot product, the relative bias
    comes out of a small network on log-spaced offsets and is squashed to (0, 16), and the norms sit at the end of the
    residual branches. Input [B, H, W, C]; sizes that are no multiple of the window are padded, padding is not attended.
    """

    def __init__(self, dim=32, num_heads=4, window=4, mlp_ratio=2):
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.cpb = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, num_heads, bias=False))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Linear(dim * mlp_ratio, dim))

        r = torch.arange(window)
        pts = torch.stack(torch.meshgrid(r, r, indexing="ij"), dim=-1).view(-1, 2)
        off = (pts[:, None] - pts[None, :]).float() / max(window - 1, 1) * 8
        table = torch.sign(off) * torch.log2(off.abs() + 1) / math.log2(8)
        self.register_buffer("offsets", table, persistent=False)

    def _windows(self, x):
        b, h, w, c = x.shape
        s = self.window
        return x.view(b, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s * s, c)

    def _attend(self, x):
        b, h, w, c = x.shape
        s = self.window
        ph, pw = (-h) % s, (-w) % s
        x = F.pad(x, (0, 0, 0, pw, 0, ph))
        valid = F.pad(x.new_ones(1, h, w, 1), (0, 0, 0, pw, 0, ph))
        gh, gw = (h + ph) // s, (w + pw) // s

        win = self._windows(x)
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        qkv = F.linear(win, self.qkv.weight, bias)
        q, k, v = qkv.view(win.size(0), s * s, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        sim = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        sim = sim * self.logit_scale.clamp(max=math.log(100.0)).exp()
        sim = sim + 16 * torch.sigmoid(self.cpb(self.offsets)).permute(2, 0, 1)
        dead = self._windows(valid).view(gh * gw, 1, 1, s * s) == 0
        sim = sim.masked_fill(dead.repeat(b, 1, 1, 1), -1e4)

        y = (sim.softmax(-1) @ v).transpose(1, 2).reshape(-1, s * s, c)
        y = self.proj(y).view(b, gh, gw, s, s, c).transpose(2, 3).reshape(b, gh * s, gw * s, c)
        return y[:, :h, :w]

    def forward(self, x):
        x = x + self.norm1(self._attend(x))
        return x + self.norm2(self.mlp(x))
