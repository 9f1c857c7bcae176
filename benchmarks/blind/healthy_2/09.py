import torch
from torch import nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dropout=0.):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.attn_drop = dropout
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.to_qkv(x).reshape(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop if self.training else 0.)
        out = out.transpose(1, 2).reshape(b, n, d)
        return self.drop(self.to_out(out))


class DropPath(nn.Module):
    """Stochastic depth per sample."""

    def __init__(self, p=0.):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0. or not self.training:
            return x
        keep = 1. - self.p
        gate = x.new_empty(x.size(0), *([1] * (x.dim() - 1))).bernoulli_(keep)
        return x * gate / keep


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, mlp_ratio, dropout, drop_path):
        super().__init__()
        hidden = int(dim * mlp_ratio)
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads, dropout)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(hidden, dim), nn.Dropout(dropout),
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    """ViT classifier. Images may differ from ``image_size`` as long as both sides are
    multiples of ``patch_size``; the position grid is then resized bicubically."""

    def __init__(self, image_size=32, patch_size=4, in_chans=3, num_classes=10, dim=96,
                 depth=3, heads=4, mlp_ratio=4., dropout=0.1, drop_path=0.1):
        super().__init__()
        assert image_size % patch_size == 0
        self.patch_size = patch_size
        self.grid = image_size // patch_size
        self.patch_embed = nn.Conv2d(in_chans, dim, kernel_size=patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.cls_pos = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, dim, self.grid, self.grid))
        self.dropout = nn.Dropout(dropout)
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.Sequential(*[EncoderBlock(dim, heads, mlp_ratio, dropout, r) for r in rates])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)
        for p in (self.cls_token, self.cls_pos, self.pos_embed):
            nn.init.trunc_normal_(p, std=0.02)

    def forward(self, images):
        h, w = images.shape[-2:]
        if h % self.patch_size or w % self.patch_size:
            raise ValueError("image sides must be multiples of the patch size")
        x = self.patch_embed(images)
        pos = self.pos_embed
        if x.shape[-2:] != pos.shape[-2:]:
            pos = F.interpolate(pos, size=x.shape[-2:], mode="bicubic", align_corners=False)
        x = (x + pos).flatten(2).transpose(1, 2)
        cls = (self.cls_token + self.cls_pos).expand(x.size(0), -1, -1)
        x = self.dropout(torch.cat([cls, x], dim=1))
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0])
