from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F


class DropPath(nn.Module):
    """Stochastic depth, one decision per sample."""

    def __init__(self, p: float = 0.0):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1.0 - self.p
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask / keep


class LayerScale(nn.Module):
    def __init__(self, dim, init=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), init))

    def forward(self, x):
        return x * self.gamma


class Attention(nn.Module):
    def __init__(self, dim, num_heads, qk_norm=True, attn_drop=0.0, norm_layer=nn.LayerNorm):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.q_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop = attn_drop
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop if self.training else 0.0)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio, attn_drop, drop_path, norm_layer):
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = Attention(dim, num_heads, attn_drop=attn_drop, norm_layer=norm_layer)
        self.ls1, self.dp1 = LayerScale(dim), DropPath(drop_path)
        self.norm2 = norm_layer(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.ls2, self.dp2 = LayerScale(dim), DropPath(drop_path)

    def forward(self, x):
        x = x + self.dp1(self.ls1(self.attn(self.norm1(x))))
        x = x + self.dp2(self.ls2(self.mlp(self.norm2(x))))
        return x


class VisionTransformer(nn.Module):
    """ViT with class token and register tokens.

    Registers take part in the attention but carry no position, and are dropped before the head.
    Images of another size than ``img_size`` get a bicubically resized position grid.
    """

    def __init__(self, img_size=32, patch_size=4, in_chans=3, num_classes=10, dim=96, depth=3, num_heads=4,
                 mlp_ratio=4.0, num_registers=4, attn_drop=0.0, drop_path=0.1):
        super().__init__()
        norm_layer = partial(nn.LayerNorm, eps=1e-6)
        self.patch_size = patch_size
        self.grid = img_size // patch_size
        self.num_prefix = 1 + num_registers
        self.patch_embed = nn.Conv2d(in_chans, dim, kernel_size=patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.registers = nn.Parameter(torch.zeros(1, num_registers, dim))
        self.cls_pos = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid * self.grid, dim))
        rates = torch.linspace(0, drop_path, depth).tolist()
        self.blocks = nn.ModuleList(
            [Block(dim, num_heads, mlp_ratio, attn_drop, rates[i], norm_layer) for i in range(depth)]
        )
        self.norm = norm_layer(dim)
        self.head = nn.Linear(dim, num_classes)
        for p in (self.cls_token, self.registers, self.cls_pos, self.pos_embed):
            nn.init.trunc_normal_(p, std=0.02)

    def _positions(self, h, w):
        if (h, w) == (self.grid, self.grid):
            return self.pos_embed
        grid = self.pos_embed.reshape(1, self.grid, self.grid, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(h, w), mode="bicubic", align_corners=False, antialias=True)
        return grid.flatten(2).transpose(1, 2)

    def forward_features(self, img):
        if img.shape[-2] % self.patch_size or img.shape[-1] % self.patch_size:
            raise ValueError("image size must be a multiple of the patch size")
        x = self.patch_embed(img)
        B, _, h, w = x.shape
        x = x.flatten(2).transpose(1, 2) + self._positions(h, w)
        cls = (self.cls_token + self.cls_pos).expand(B, -1, -1)
        x = torch.cat([cls, self.registers.expand(B, -1, -1), x], dim=1)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)

    def forward(self, img):
        x = self.forward_features(img)
        patches = x[:, self.num_prefix :].mean(dim=1)
        return self.head((x[:, 0] + patches) / 2)
