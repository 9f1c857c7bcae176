"""The region map of shifted windows is (1, 1, H, W) but filled as [:, h, w, :], so wrapped-around patches attend.

zsyOAOA/ResShift #81 (2024)
https://github.com/zsyOAOA/ResShift/issues/81
"""
import torch
import torch.nn as nn


def window_partition(x, window_size):
    """
    Args:
        x: (B, C, H, W)
        window_size (int): window size

    Returns:
        windows: (num_windows*B, C, window_size, window_size)
    """
    B, C, H, W = x.shape
    x = x.view(B, C, H // window_size, window_size, W // window_size, window_size)
    return x.permute(0, 2, 4, 1, 3, 5).contiguous().view(-1, C, window_size, window_size)


def window_reverse(windows, window_size, H, W):
    """Inverse of window_partition: (B, C, H, W)"""
    B = int(windows.shape[0] / (H * W / window_size / window_size))
    x = windows.view(B, H // window_size, W // window_size, -1, window_size, window_size)
    return x.permute(0, 3, 1, 4, 2, 5).contiguous().view(B, -1, H, W)


class WindowAttention(nn.Module):
    r""" Window based multi-head self attention (W-MSA) module. It supports both of shifted and non-shifted window."""

    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Conv2d(dim, dim * 3, kernel_size=1)
        self.proj = nn.Conv2d(dim, dim, kernel_size=1)

    def forward(self, x, mask=None):
        """
        Args:
            x: input features with shape of (num_windows*B, C, Wh, Ww)
            mask: (0/-inf) mask with shape of (num_windows, Wh*Ww, Wh*Ww) or None
        """
        B_, C, H, W = x.shape
        N = H * W
        qkv = self.qkv(x).view(B_, 3, self.num_heads, C // self.num_heads, N).permute(1, 0, 2, 4, 3)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q * self.scale) @ k.transpose(-2, -1)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(2, 3).reshape(B_, C, H, W)
        return self.proj(x)


class _SwinTransformerBlockBase(nn.Module):
    def __init__(self, dim, num_heads, window_size=4, shift_size=2):
        super().__init__()
        self.window_size, self.shift_size = window_size, shift_size
        self.norm1 = nn.GroupNorm(1, dim)
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.norm2 = nn.GroupNorm(1, dim)
        self.mlp = nn.Sequential(nn.Conv2d(dim, 2 * dim, 1), nn.GELU(), nn.Conv2d(2 * dim, dim, 1))

    def forward(self, x):
        """x: (B, C, H, W); H and W are multiples of the window size"""
        B, C, H, W = x.shape
        shortcut = x
        x = self.norm1(x)
        # cyclic shift
        if self.shift_size > 0:
            shifted_x = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(2, 3))
        else:
            shifted_x = x
        x_windows = window_partition(shifted_x, self.window_size)  # nW*B, C, window_size, window_size
        attn_mask = self.calculate_mask((H, W)).to(x.device) if self.shift_size > 0 else None
        attn_windows = self.attn(x_windows, mask=attn_mask)
        shifted_x = window_reverse(attn_windows, self.window_size, H, W)  # B C H' W'
        # reverse cyclic shift
        if self.shift_size > 0:
            x = torch.roll(shifted_x, shifts=(self.shift_size, self.shift_size), dims=(2, 3))
        else:
            x = shifted_x
        x = shortcut + x
        return x + self.mlp(self.norm2(x))


def broken() -> nn.Module:
    class SwinTransformerBlock(_SwinTransformerBlockBase):
        def calculate_mask(self, x_size):
            # calculate attention mask for SW-MSA
            H, W = x_size
            img_mask = torch.zeros((1, 1, H, W))  # 1 1 H W
            h_slices = (slice(0, -self.window_size),
                        slice(-self.window_size, -self.shift_size),
                        slice(-self.shift_size, None))
            w_slices = (slice(0, -self.window_size),
                        slice(-self.window_size, -self.shift_size),
                        slice(-self.shift_size, None))
            cnt = 0
            for h in h_slices:
                for w in w_slices:
                    img_mask[:, h, w, :] = cnt
                    cnt += 1

            mask_windows = window_partition(img_mask, self.window_size)  # nW, 1, window_size, window_size
            mask_windows = mask_windows.view(-1, self.window_size * self.window_size)
            attn_mask = mask_windows.unsqueeze(1) - mask_windows.unsqueeze(2)
            return attn_mask.masked_fill(attn_mask != 0, float("-inf")).masked_fill(attn_mask == 0, float(0.0))

    torch.manual_seed(0)
    return SwinTransformerBlock(32, 4)


def fixed() -> nn.Module:
    class SwinTransformerBlock(_SwinTransformerBlockBase):
        def calculate_mask(self, x_size):
            # calculate attention mask for SW-MSA
            H, W = x_size
            img_mask = torch.zeros((1, 1, H, W))  # 1 1 H W
            h_slices = (slice(0, -self.window_size),
                        slice(-self.window_size, -self.shift_size),
                        slice(-self.shift_size, None))
            w_slices = (slice(0, -self.window_size),
                        slice(-self.window_size, -self.shift_size),
                        slice(-self.shift_size, None))
            cnt = 0
            for h in h_slices:
                for w in w_slices:
                    img_mask[:, :, h, w] = cnt
                    cnt += 1

            mask_windows = window_partition(img_mask, self.window_size)  # nW, 1, window_size, window_size
            mask_windows = mask_windows.view(-1, self.window_size * self.window_size)
            attn_mask = mask_windows.unsqueeze(1) - mask_windows.unsqueeze(2)
            return attn_mask.masked_fill(attn_mask != 0, float("-inf")).masked_fill(attn_mask == 0, float(0.0))

    torch.manual_seed(0)
    return SwinTransformerBlock(32, 4)


def example() -> tuple[tuple, dict]:
    return (torch.randn(2, 32, 8, 8, generator=torch.Generator().manual_seed(1)),), {}
