"""The feature map is padded after the cyclic shift, so the shift mask no longer covers the wrapped rows and opposite borders attend to each other.

huggingface/pytorch-image-models #2438 (2025)
https://github.com/huggingface/pytorch-image-models/issues/2438
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def window_partition(x, ws):
    B, H, W, C = x.shape
    return x.view(B, H // ws, ws, W // ws, ws, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(win, ws, H, W):
    C = win.shape[-1]
    return win.view(-1, H // ws, W // ws, ws, ws, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, H, W, C)


def _build(rev):
    class WindowAttention(nn.Module):
        def __init__(self, dim, num_heads):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            self.qkv = nn.Linear(dim, dim * 3)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x, mask=None):
            B_, N, C = x.shape
            q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            attn = q * self.scale @ k.transpose(-2, -1)
            nW = mask.shape[0]
            attn = attn.view(-1, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N).softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))

    class SwinTransformerV2Block(nn.Module):
        """Shifted-window block, forward(x), x (B, H, W, C). Attention runs in windows of the map shifted by
        shift_size; places that the cyclic shift brought together from opposite borders do not attend to one
        another. H and W are padded to multiples of window_size."""

        def __init__(self, dim=32, num_heads=4, window_size=4, shift_size=2):
            super().__init__()
            self.window_size, self.shift_size = window_size, shift_size
            self.attn = WindowAttention(dim, num_heads)
            self.norm1 = nn.LayerNorm(dim)

        def get_attn_mask(self, H, W, device):
            ws, s = self.window_size, self.shift_size
            img_mask = torch.zeros(1, H, W, 1, device=device)
            cnt = 0
            for h in (slice(0, -ws), slice(-ws, -s), slice(-s, None)):
                for w in (slice(0, -ws), slice(-ws, -s), slice(-s, None)):
                    img_mask[:, h, w, :] = cnt
                    cnt += 1
            m = window_partition(img_mask, ws).squeeze(-1)
            return torch.zeros(m.shape[0], ws * ws, ws * ws, device=device).masked_fill(
                m[:, None, :] != m[:, :, None], -100.0)

        def forward(self, x):
            B, H, W, C = x.shape
            ws, s = self.window_size, self.shift_size
            ph, pw = (-H) % ws, (-W) % ws
            if rev == 1:
                y = torch.roll(x, (-s, -s), dims=(1, 2))
                y = F.pad(y, (0, 0, 0, pw, 0, ph))
            else:
                y = F.pad(x, (0, 0, 0, pw, 0, ph))
                y = torch.roll(y, (-s, -s), dims=(1, 2))
            Hp, Wp = H + ph, W + pw
            y = window_reverse(self.attn(window_partition(y, ws), self.get_attn_mask(Hp, Wp, x.device)), ws, Hp, Wp)
            if rev == 1:
                y = torch.roll(y[:, :H, :W], (s, s), dims=(1, 2))
            else:
                y = torch.roll(y, (s, s), dims=(1, 2))[:, :H, :W]
            return x + self.norm1(y)

    torch.manual_seed(0)
    return SwinTransformerV2Block()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 7, 7, 32),), {}
