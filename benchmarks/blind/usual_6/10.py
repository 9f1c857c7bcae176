import torch
import torch.nn as nn


def to_windows(x, ws):
    """(B, H, W, C) -> (B * nW, ws*ws, C)"""
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def from_windows(w, ws, H, W):
    """(B * nW, ws*ws, C) -> (B, H, W, C)"""
    C = w.shape[-1]
    x = w.view(-1, H // ws, W // ws, ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, H, W, C)


class ShiftedWindowBlock(nn.Module):
    """Swin block on a channels-last feature map (B, H, W, C).

    The map is rolled by ``shift``; tokens that were not neighbours before the roll
    share a window afterwards, they get -100 in the scores.
    """

    def __init__(self, dim=64, num_heads=4, window_size=4, shift=2, mlp_ratio=4):
        super().__init__()
        assert 0 <= shift < window_size
        self.ws, self.shift, self.heads = window_size, shift, num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim))

        span = 2 * window_size - 1
        self.bias_table = nn.Parameter(torch.zeros(span * span, num_heads))
        nn.init.trunc_normal_(self.bias_table, std=.02)
        r = torch.arange(window_size)
        yy = r.repeat_interleave(window_size)
        xx = r.repeat(window_size)
        dy = yy[:, None] - yy[None, :] + window_size - 1
        dx = xx[:, None] - xx[None, :] + window_size - 1
        self.register_buffer("bias_index", dy * span + dx, persistent=False)

    def shift_mask(self, H, W, device):
        region = torch.zeros(1, H, W, 1, device=device)
        cuts = (slice(0, -self.ws), slice(-self.ws, -self.shift), slice(-self.shift, None))
        count = 0
        for hs in cuts:
            for wsl in cuts:
                region[:, hs, wsl, :] = count
                count += 1
        ids = to_windows(region, self.ws).squeeze(-1)            # nW, N
        return (ids[:, None, :] != ids[:, :, None]).float() * -100.0

    def attend(self, w, mask):
        Bw, N, C = w.shape
        q, k, v = self.qkv(w).view(Bw, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        s = (q * self.scale) @ k.transpose(-2, -1)
        s = s + self.bias_table[self.bias_index].permute(2, 0, 1)
        if mask is not None:
            nW = mask.size(0)
            s = s.view(Bw // nW, nW, self.heads, N, N) + mask.to(s.dtype)[None, :, None]
            s = s.view(Bw, self.heads, N, N)
        out = s.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(Bw, N, C))

    def forward(self, x):
        B, H, W, C = x.shape
        if H % self.ws or W % self.ws:
            raise ValueError("H and W must be multiples of the window size")
        shortcut = x
        x = self.norm1(x)
        mask = None
        if self.shift > 0:
            x = torch.roll(x, (-self.shift, -self.shift), dims=(1, 2))
            mask = self.shift_mask(H, W, x.device)
        x = from_windows(self.attend(to_windows(x, self.ws), mask), self.ws, H, W)
        if self.shift > 0:
            x = torch.roll(x, (self.shift, self.shift), dims=(1, 2))
        x = shortcut + x
        return x + self.mlp(self.norm2(x))
