import torch
import torch.nn as nn
import torch.nn.functional as F


class LPI(nn.Module):
    """Local patch interaction: two depth-wise 3x3 convolutions."""

    def __init__(self, dim, kernel_size=3):
        super().__init__()
        padding = kernel_size // 2
        self.conv1 = nn.Conv2d(dim, dim, kernel_size, padding=padding, groups=dim)
        self.act = nn.GELU()
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, kernel_size, padding=padding, groups=dim)

    def forward(self, x, H, W):
        B, N, C = x.shape
        x = x.transpose(1, 2).reshape(B, C, H, W)
        x = self.conv2(self.bn(self.act(self.conv1(x))))
        return x.reshape(B, C, N).transpose(1, 2)


class XCA(nn.Module):
    """Cross-covariance attention.

    The attention map is (channels x channels) per head. Queries and keys are l2-normalised along the
    *token* axis, so that the products are cosines between channels, and a learned temperature per head
    multiplies them.
    """

    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        # (3, B, heads, C / heads, N)
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 4, 1)
        q, k, v = qkv.unbind(0)

        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)
        attn = (q @ k.transpose(-2, -1)) * self.temperature
        attn = self.attn_drop(attn.softmax(dim=-1))

        x = (attn @ v).permute(0, 3, 1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class XCABlock(nn.Module):
    def __init__(self, dim=96, num_heads=4, mlp_ratio=4.0, qkv_bias=True, drop=0.0, attn_drop=0.0, eta=1.0):
        super().__init__()
        assert dim % num_heads == 0
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = XCA(dim, num_heads, qkv_bias, attn_drop, drop)
        self.gamma1 = nn.Parameter(eta * torch.ones(dim))

        self.norm3 = nn.LayerNorm(dim, eps=1e-6)
        self.local_mp = LPI(dim)
        self.gamma3 = nn.Parameter(eta * torch.ones(dim))

        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(drop), nn.Linear(hidden, dim), nn.Dropout(drop)
        )
        self.gamma2 = nn.Parameter(eta * torch.ones(dim))

    def forward(self, x, H: int, W: int):
        """x: (B, H * W, dim)"""
        x = x + self.gamma1 * self.attn(self.norm1(x))
        # official ordering: norm3 goes with the local interaction, norm2 with the mlp
        x = x + self.gamma3 * self.local_mp(self.norm3(x), H, W)
        x = x + self.gamma2 * self.mlp(self.norm2(x))
        return x
