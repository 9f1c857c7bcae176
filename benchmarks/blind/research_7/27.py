import torch
import torch.nn as nn
import torch.nn.functional as F


class AxisAttention(nn.Module):
    def __init__(self, dim, num_heads, attn_drop, proj_drop):
        super().__init__()
        self.num_heads = num_heads
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        """x: [..., L, C], attention runs along L."""
        lead, (L, C) = x.shape[:-2], x.shape[-2:]
        qkv = self.qkv(x.reshape(-1, L, C)).view(-1, L, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop)
        y = y.transpose(1, 2).reshape(*lead, L, C)
        return self.proj_drop(self.proj(y))


class AxialAttentionBlock(nn.Module):
    """Factorised attention over the rows and then the columns of a [B, C, H, W] map."""

    def __init__(self, dim: int = 64, num_heads: int = 4, attn_drop: float = 0.1, proj_drop: float = 0.1):
        super().__init__()
        self.norm_w = nn.LayerNorm(dim)
        self.norm_h = nn.LayerNorm(dim)
        self.norm_m = nn.LayerNorm(dim)
        self.along_w = AxisAttention(dim, num_heads, attn_drop, proj_drop)
        self.along_h = AxisAttention(dim, num_heads, attn_drop, proj_drop)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(proj_drop))

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = x + self.along_w(self.norm_w(x))
        x = x.transpose(1, 2)
        x = x + self.along_h(self.norm_h(x))
        x = x.transpose(1, 2)
        x = x + self.mlp(self.norm_m(x))
        return x.permute(0, 3, 1, 2).contiguous()
