import torch
import torch.nn as nn


def window_partition(x, ws):
    """(B, H, W, C) -> (num_windows*B, ws*ws, C)"""
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    """(num_windows*B, ws*ws, C) -> (B, H, W, C)"""
    B = windows.shape[0] // ((H // ws) * (W // ws))
    x = windows.view(B, H // ws, W // ws, ws, ws, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, -1)


class ShiftedWindowAttention(nn.Module):
    """
    Window based multi-head self attention with cyclic shift and relative position bias.

    Args:
        dim (int): number of channels.
        num_heads (int): number of heads.
        window_size (int): side of a window; H and W must be multiples of it.
        shift_size (int): cyclic shift, 0 for the unshifted layer.

    Input and output: (B, H, W, C); output pixel (y, x) belongs to input pixel (y, x).
    """

    def __init__(self, dim=32, num_heads=4, window_size=4, shift_size=2, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift_size = shift_size
        self.scale = (dim // num_heads) ** -0.5

        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        coords = torch.stack(
            torch.meshgrid(torch.arange(window_size), torch.arange(window_size), indexing="ij")
        ).flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        rel += window_size - 1
        rel[:, :, 0] *= 2 * window_size - 1
        self.register_buffer("relative_position_index", rel.sum(-1))

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def _shift_mask(self, H, W, device):
        ws, ss = self.window_size, self.shift_size
        img = torch.zeros(1, H, W, 1, device=device)
        cnt = 0
        for h in (slice(0, -ws), slice(-ws, -ss), slice(-ss, None)):
            for w in (slice(0, -ws), slice(-ws, -ss), slice(-ss, None)):
                img[:, h, w, :] = cnt
                cnt += 1
        ids = window_partition(img, ws).squeeze(-1)
        diff = ids.unsqueeze(1) - ids.unsqueeze(2)
        return torch.zeros_like(diff).masked_fill(diff != 0, -100.0)

    def forward(self, x):
        B, H, W, C = x.shape
        ws, ss = self.window_size, self.shift_size
        if ss > 0:
            x = torch.roll(x, shifts=(-ss, -ss), dims=(1, 2))
        windows = window_partition(x, ws)
        Bw, N, _ = windows.shape

        qkv = self.qkv(windows).reshape(Bw, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        attn = attn + bias.view(N, N, -1).permute(2, 0, 1).unsqueeze(0)
        if ss > 0:
            mask = self._shift_mask(H, W, x.device)
            nW = mask.shape[0]
            attn = attn.view(Bw // nW, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)

        out = self.proj((attn @ v).transpose(1, 2).reshape(Bw, N, C))
        out = window_reverse(out, ws, H, W)
        if ss > 0:
            out = torch.roll(out, shifts=(-ss, -ss), dims=(1, 2))
        return out
