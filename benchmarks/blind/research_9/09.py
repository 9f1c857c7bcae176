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
    """(Shifted) window attention with relative position bias. Input [B, H, W, C], H and W multiples of the window."""

    def __init__(self, dim=32, num_heads=4, window_size=4, shift_size=2):
        super().__init__()
        self.ws = window_size
        self.shift = shift_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        ax = torch.arange(window_size)
        coords = torch.stack(torch.meshgrid(ax, ax, indexing="ij")).flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window_size - 1
        self.register_buffer("rel_index", rel[..., 0] * (2 * window_size - 1) + rel[..., 1], persistent=False)

    def _shift_mask(self, H, W, device):
        region = torch.zeros(1, H, W, 1, device=device)
        cuts = (slice(0, -self.ws), slice(-self.ws, -self.shift), slice(-self.shift, None))
        n = 0
        for h in cuts:
            for w in cuts:
                region[:, h, w, :] = n
                n += 1
        region = window_partition(region, self.ws).squeeze(-1)
        diff = region[:, None, :] - region[:, :, None]
        return torch.zeros_like(diff).masked_fill(diff != 0, -100.0)

    def forward(self, x):
        B, H, W, C = x.shape
        if self.shift > 0:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        win = window_partition(x, self.ws)
        n_win, N, _ = win.shape

        qkv = self.qkv(win).reshape(n_win, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.rel_index.view(-1)].view(N, N, -1)
        attn = attn + bias.permute(2, 0, 1).unsqueeze(0)
        if self.shift > 0:
            mask = self._shift_mask(H, W, x.device).repeat_interleave(B, dim=0)
            attn = attn + mask.unsqueeze(1)
        attn = attn.softmax(dim=-1)

        out = (attn @ v).transpose(1, 2).reshape(n_win, N, C)
        out = window_reverse(self.proj(out), self.ws, H, W)
        if self.shift > 0:
            out = torch.roll(out, shifts=(self.shift, self.shift), dims=(1, 2))
        return out
