"""Channel-independent patch transformer for long-horizon forecasting."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SinusoidalEncoding(nn.Module):
    def __init__(self, d_model, max_len=5000):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(1))

    def forward(self, x):
        return x + self.pe[:x.size(0)]


class PatchSelfAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.to_qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        B, N, _ = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q = q.view(B, N, self.n_heads, self.d_k).transpose(1, 2)
        k = k.view(B, N, self.n_heads, self.d_k).transpose(1, 2)
        v = v.view(B, N, self.n_heads, self.d_k).transpose(1, 2)
        attn = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.d_k)
        attn = self.drop(F.softmax(attn, dim=-1))
        y = torch.matmul(attn, v).transpose(1, 2).reshape(B, N, -1)
        return self.out(y)


class PatchEncoder(nn.Module):
    """
    Args:
        d_model: width of a patch token.
        n_heads: number of attention heads.
        patch_len / stride: how the look-back window is cut.

    Shape:
        x: [batch, channels, seq_len]  ->  [batch, channels, num_patches, d_model]
    """

    def __init__(self, d_model=64, n_heads=4, patch_len=16, stride=8, d_ff=128, dropout=0.1):
        super().__init__()
        self.patch_len = patch_len
        self.stride = stride
        self.embed = nn.Linear(patch_len, d_model)
        self.pos = SinusoidalEncoding(d_model)
        self.attn = PatchSelfAttention(d_model, n_heads, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, C, L = x.shape
        x = F.pad(x, (0, self.stride), mode="replicate")
        x = x.unfold(dimension=-1, size=self.patch_len, step=self.stride)
        N = x.shape[2]
        u = self.embed(x).reshape(B * C, N, -1)
        u = self.dropout(self.pos(u))

        u = self.norm1(u + self.dropout(self.attn(u)))
        u = self.norm2(u + self.dropout(self.ff(u)))
        return u.view(B, C, N, -1)
