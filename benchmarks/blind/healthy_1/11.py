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


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads, attn_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

        coords = torch.stack(torch.meshgrid(torch.arange(window_size), torch.arange(window_size), indexing="ij"))
        coords = coords.flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window_size - 1
        index = rel[..., 0] * (2 * window_size - 1) + rel[..., 1]
        self.register_buffer("relative_position_index", index, persistent=False)

        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        """x: (num_windows * B, N, C); mask: (num_windows, N, N), True where attention is forbidden."""
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index]
        attn = attn + bias.permute(2, 0, 1)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(-1, nW, self.num_heads, N, N)
            attn = attn.masked_fill(mask[None, :, None], float("-inf"))
            attn = attn.view(-1, self.num_heads, N, N)
        attn = self.attn_drop(attn.softmax(dim=-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))


class SwinTransformerBlock(nn.Module):
    """Shifted-window block on ``(B, H, W, C)`` maps of any size.

    The map is padded to a multiple of the window; padded cells form a region of their own and real
    cells never attend to them. An axis covered by a single window is not shifted.
    """

    def __init__(self, dim=48, num_heads=4, window_size=4, shift_size=2, mlp_ratio=4.0, drop=0.0, attn_drop=0.0):
        super().__init__()
        assert 0 <= shift_size < window_size, "shift_size must be in [0, window_size)"
        self.window_size = window_size
        self.shift_size = shift_size
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window_size, num_heads, attn_drop)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(drop), nn.Linear(hidden, dim), nn.Dropout(drop)
        )

    def _build_mask(self, H, W, Hp, Wp, sh, sw, device):
        if (sh, sw) == (0, 0) and (H, W) == (Hp, Wp):
            return None
        ws = self.window_size

        def bands(n, shift):
            ids = torch.zeros(n, dtype=torch.long, device=device)
            if shift:
                ids[n - ws: n - shift] = 1
                ids[n - shift:] = 2
            return ids

        # region ids live in rolled coordinates, the padding has to be rolled along with the features
        region = bands(Hp, sh)[:, None] * 3 + bands(Wp, sw)[None, :]
        padded = torch.ones(Hp, Wp, dtype=torch.long, device=device)
        padded[:H, :W] = 0
        padded = torch.roll(padded, shifts=(-sh, -sw), dims=(0, 1))
        ids = window_partition((region * 2 + padded)[None, :, :, None], ws).squeeze(-1)
        return ids[:, :, None] != ids[:, None, :]

    def forward(self, x):
        B, H, W, C = x.shape
        ws = self.window_size
        shortcut = x
        x = self.norm1(x)
        x = F.pad(x, (0, 0, 0, -W % ws, 0, -H % ws))
        Hp, Wp = x.shape[1:3]
        sh = self.shift_size if Hp > ws else 0
        sw = self.shift_size if Wp > ws else 0

        if sh or sw:
            x = torch.roll(x, shifts=(-sh, -sw), dims=(1, 2))
        mask = self._build_mask(H, W, Hp, Wp, sh, sw, x.device)
        windows = self.attn(window_partition(x, ws), mask)
        x = window_reverse(windows, ws, Hp, Wp)
        if sh or sw:
            x = torch.roll(x, shifts=(sh, sw), dims=(1, 2))
        x = shortcut + x[:, :H, :W]
        return x + self.mlp(self.norm2(x))
