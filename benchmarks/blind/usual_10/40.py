import torch
import torch.nn as nn


class MHSA(nn.Module):
    def __init__(self, dim, n_heads=4, attn_p=0.1, proj_p=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.scale = self.head_dim ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_p)
        self.proj_drop = nn.Dropout(proj_p)

    def forward(self, x):
        n_samples, n_tokens, dim = x.shape
        qkv = self.qkv(x).reshape(n_samples, n_tokens, 3, self.n_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)

        dp = (q @ k.transpose(-2, -1)) * self.scale
        dp = self.attn_drop(dp)
        attn = dp.softmax(dim=-1)

        weighted_avg = (attn @ v).transpose(1, 2).flatten(2)
        return self.proj_drop(self.proj(weighted_avg))


class ViTBlock(nn.Module):
    """Vision transformer encoder block.

    Parameters
    ----------
    dim : int
        Embedding dimension.
    n_heads : int
        Number of attention heads.
    p, attn_p : float
        Dropout probability of the projections and of the attention weights.
    """

    def __init__(self, dim=64, n_heads=4, mlp_ratio=4.0, p=0.1, attn_p=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = MHSA(dim, n_heads=n_heads, attn_p=attn_p, proj_p=p)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        hidden_features = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden_features),
            nn.GELU(),
            nn.Dropout(p),
            nn.Linear(hidden_features, dim),
            nn.Dropout(p),
        )

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x
