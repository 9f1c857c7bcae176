"""F.scaled_dot_product_attention gets the dropout rate in eval mode too.

facebookresearch/vjepa2 #160 (2026)
https://github.com/facebookresearch/vjepa2/pull/160
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class _AttentionBase(nn.Module):
    def __init__(
        self,
        dim,
        num_heads=8,
        qkv_bias=False,
        qk_scale=None,
        attn_drop=0.0,
        proj_drop=0.0,
        use_sdpa=True,
        is_causal=False,
    ):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = qk_scale or head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop_prob = proj_drop
        self.proj_drop = nn.Dropout(proj_drop)
        self.use_sdpa = use_sdpa
        self.is_causal = is_causal


def broken() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, x, attn_mask=None):
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
            q, k, v = qkv[0], qkv[1], qkv[2]  # [B, num_heads, N, D]

            if attn_mask is not None or self.use_sdpa:
                x = F.scaled_dot_product_attention(
                    q, k, v, dropout_p=self.proj_drop_prob, is_causal=self.is_causal, attn_mask=attn_mask
                )
            else:
                attn = (q @ k.transpose(-2, -1)) * self.scale
                attn = attn.softmax(dim=-1)
                attn = self.attn_drop(attn)
                x = attn @ v

            x = x.transpose(1, 2).reshape(B, N, C)
            x = self.proj(x)
            x = self.proj_drop(x)
            return x

    torch.manual_seed(0)
    return Attention(32, num_heads=4, qkv_bias=True, attn_drop=0.1, proj_drop=0.1)


def fixed() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, x, attn_mask=None):
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
            q, k, v = qkv[0], qkv[1], qkv[2]  # [B, num_heads, N, D]

            if attn_mask is not None or self.use_sdpa:
                dropout_p = self.proj_drop_prob if self.training else 0.0
                x = F.scaled_dot_product_attention(
                    q, k, v, dropout_p=dropout_p, is_causal=self.is_causal, attn_mask=attn_mask
                )
            else:
                attn = (q @ k.transpose(-2, -1)) * self.scale
                attn = attn.softmax(dim=-1)
                attn = self.attn_drop(attn)
                x = attn @ v

            x = x.transpose(1, 2).reshape(B, N, C)
            x = self.proj(x)
            x = self.proj_drop(x)
            return x

    torch.manual_seed(0)
    return Attention(32, num_heads=4, qkv_bias=True, attn_drop=0.1, proj_drop=0.1)


def example():
    g = torch.Generator().manual_seed(42)
    return (torch.randn(2, 12, 32, generator=g),), {}
