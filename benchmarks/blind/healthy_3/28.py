import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvMlp(nn.Module):
    """Feed-forward with a depthwise 3x3 convolution, which also brings in position (PVTv2)."""

    def __init__(self, dim, ratio):
        super().__init__()
        hidden = dim * ratio
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x, H, W):
        x = self.fc1(x)
        B, N, C = x.shape
        x = self.dwconv(x.transpose(1, 2).reshape(B, C, H, W)).flatten(2).transpose(1, 2)
        return self.fc2(F.gelu(x))


class SpatialReductionAttention(nn.Module):
    """Full resolution queries, keys and values on a map reduced by ``sr_ratio``."""

    def __init__(self, dim, num_heads, sr_ratio, attn_drop):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.attn_drop = attn_drop
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.sr_ratio = sr_ratio
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)

    def forward(self, x, H, W):
        B, N, C = x.shape
        q = self.q(x).reshape(B, N, self.num_heads, self.head_dim).transpose(1, 2)

        src = x
        if self.sr_ratio > 1:
            fmap = x.transpose(1, 2).reshape(B, C, H, W)
            # fill up to a multiple of the ratio, otherwise the last rows and columns would not be seen
            fmap = F.pad(fmap, (0, -W % self.sr_ratio, 0, -H % self.sr_ratio))
            src = self.norm(self.sr(fmap).flatten(2).transpose(1, 2))
        k, v = self.kv(src).reshape(B, -1, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)

        drop = self.attn_drop if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        return self.proj(out.transpose(1, 2).reshape(B, N, C))


class PVTStage(nn.Module):
    """One stage of a pyramid vision transformer.

    Args:
        in_chans: channels of the incoming feature map.
        patch, stride: overlapping patch embedding; the map shrinks by ``stride``.

    Input (B, in_chans, H, W), output (B, dim, H / stride, W / stride) with H, W rounded up.
    """

    def __init__(self, in_chans=3, dim=64, depth=2, num_heads=2, sr_ratio=4, mlp_ratio=4, patch=7, stride=4,
                 attn_drop=0.0, drop=0.0):
        super().__init__()
        assert patch > stride and patch % 2 == 1
        self.embed = nn.Conv2d(in_chans, dim, kernel_size=patch, stride=stride, padding=patch // 2)
        self.embed_norm = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(nn.ModuleDict({
                "norm1": nn.LayerNorm(dim),
                "attn": SpatialReductionAttention(dim, num_heads, sr_ratio, attn_drop),
                "norm2": nn.LayerNorm(dim),
                "mlp": ConvMlp(dim, mlp_ratio),
            }))
        self.drop = nn.Dropout(drop)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = self.embed(x)
        B, C, H, W = x.shape
        x = self.embed_norm(x.flatten(2).transpose(1, 2))
        for blk in self.blocks:
            x = x + self.drop(blk["attn"](blk["norm1"](x), H, W))
            x = x + self.drop(blk["mlp"](blk["norm2"](x), H, W))
        return self.norm(x).transpose(1, 2).reshape(B, C, H, W)
