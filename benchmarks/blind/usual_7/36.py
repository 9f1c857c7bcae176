from typing import Tuple

import torch
import torch.nn as nn


class ShiftedWindowAttention(nn.Module):
    """(Shifted) window attention on a channels-last map with rectangular windows.

    After the cyclic shift a border window holds patches from opposite sides of the image; patches of different
    regions do not see each other. An axis on which one window covers the whole map is not shifted.
    """

    def __init__(self, dim=32, num_heads=4, window: Tuple[int, int] = (4, 2), shift: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.shift = (window[0] // 2, window[1] // 2) if shift else (0, 0)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        wh, ww = window
        self.rel_bias = nn.Parameter(torch.zeros(num_heads, 2 * wh - 1, 2 * ww - 1))
        nn.init.trunc_normal_(self.rel_bias, std=0.02)
        y = torch.arange(wh).repeat_interleave(ww)
        x = torch.arange(ww).repeat(wh)
        self.register_buffer("dy", y[:, None] - y[None, :] + wh - 1, persistent=False)
        self.register_buffer("dx", x[:, None] - x[None, :] + ww - 1, persistent=False)

    def _windows(self, t):
        B, H, W, C = t.shape
        wh, ww = self.window
        t = t.reshape(B, H // wh, wh, W // ww, ww, C).transpose(2, 3)
        return t.reshape(B, (H // wh) * (W // ww), wh * ww, C)

    @staticmethod
    def _regions(size, win, shift, device):
        pos = torch.arange(size, device=device)
        if shift == 0:
            return torch.zeros_like(pos)
        return (pos >= size - shift).long()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, H, W, C = x.shape
        wh, ww = self.window
        if H % wh or W % ww:
            raise ValueError(f"map {H}x{W} does not divide into windows of {wh}x{ww}")
        sh = self.shift[0] if H > wh else 0
        sw = self.shift[1] if W > ww else 0

        if sh or sw:
            x = torch.roll(x, (-sh, -sw), (1, 2))
        t = self._windows(x)
        q, k, v = self.qkv(t).unflatten(-1, (3, self.num_heads, -1)).permute(3, 0, 1, 4, 2, 5)

        attn = torch.einsum("bwhid,bwhjd->bwhij", q, k) * (C // self.num_heads) ** -0.5
        attn = attn + self.rel_bias[:, self.dy, self.dx]
        if sh or sw:
            region = 2 * self._regions(H, wh, sh, x.device)[:, None] + self._regions(W, ww, sw, x.device)[None, :]
            region = self._windows(region[None, :, :, None]).squeeze(-1)
            foreign = region[..., :, None] != region[..., None, :]
            attn = attn.masked_fill(foreign.unsqueeze(2), float("-inf"))
        out = torch.einsum("bwhij,bwhjd->bwihd", attn.softmax(-1), v).flatten(3)
        out = self.proj(out)

        out = out.reshape(B, H // wh, W // ww, wh, ww, C).transpose(2, 3).reshape(B, H, W, C)
        if sh or sw:
            out = torch.roll(out, (sh, sw), (1, 2))
        return out
