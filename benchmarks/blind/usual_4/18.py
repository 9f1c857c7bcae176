import torch
import torch.nn as nn


class Mlp(nn.Module):
    def __init__(self, dim, hidden_dim, drop=0.):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Attention(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=True, attn_drop=0.):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class DividedSpaceTimeBlock(nn.Module):
    """Video transformer block with divided attention: first along time, then within each frame.

    x: (B, T, N, C), T frames with N patches each.
    """

    def __init__(self, dim=64, num_heads=4, mlp_ratio=4., drop=0.):
        super().__init__()
        self.temporal_norm = nn.LayerNorm(dim)
        self.temporal_attn = Attention(dim, num_heads, attn_drop=drop)
        self.temporal_fc = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads, attn_drop=drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop)

    def forward(self, x):
        B, T, N, C = x.shape

        # Temporal
        xt = self.temporal_norm(x).reshape(B * N, T, C)
        xt = self.temporal_attn(xt)
        xt = self.temporal_fc(xt.reshape(B, T, N, C))
        x = x + xt

        # Spatial
        xs = self.norm1(x).reshape(B * T, N, C)
        xs = self.attn(xs).reshape(B, T, N, C)
        x = x + xs

        # Mlp
        return x + self.mlp(self.norm2(x))
