from typing import Optional

import torch
from torch import Tensor, nn


class PatchEncoderLayer(nn.Module):
    """Post-norm layer with batch normalisation over the features and residual attention (RealFormer): the raw
    scores of the layer below are added to its own before the softmax."""

    def __init__(self, dim: int, num_heads: int, ff_dim: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, ff_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(ff_dim, dim))
        self.norm_attn = nn.BatchNorm1d(dim)
        self.norm_ff = nn.BatchNorm1d(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, prev: Optional[Tensor] = None):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * self.scale
        if prev is not None:
            scores = scores + prev
        y = (self.dropout(scores.softmax(dim=-1)) @ v).transpose(1, 2).reshape(b, n, c)
        x = x + self.dropout(self.out(y))
        x = self.norm_attn(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.dropout(self.ff(x))
        x = self.norm_ff(x.transpose(1, 2)).transpose(1, 2)
        return x, scores


class PatchForecaster(nn.Module):
    """PatchTST: channel-independent forecaster on overlapping patches.

    Each window is standardised by its own mean and deviation, which are put back on the forecast.

    Args:
        seq_len: input steps.
        pred_len: forecast steps.
        patch_len, stride: patching; the end is padded by ``stride`` repeated values.

    Shapes: [B, seq_len, channels] -> [B, pred_len, channels].
    """

    def __init__(self, seq_len: int = 96, pred_len: int = 24, patch_len: int = 16, stride: int = 8, dim: int = 64,
                 num_heads: int = 4, num_layers: int = 3, dropout: float = 0.1):
        super().__init__()
        self.patch_len, self.stride = patch_len, stride
        num_patches = (seq_len - patch_len) // stride + 2
        self.pad = nn.ReplicationPad1d((0, stride))
        self.embed = nn.Linear(patch_len, dim)
        self.pos = nn.Parameter(torch.empty(num_patches, dim).uniform_(-0.02, 0.02))
        self.layers = nn.ModuleList([PatchEncoderLayer(dim, num_heads, 2 * dim, dropout) for _ in range(num_layers)])
        self.head = nn.Linear(num_patches * dim, pred_len)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=1, keepdim=True).detach()
        std = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
        x = (x - mean) / std

        b, _, c = x.shape
        x = self.pad(x.transpose(1, 2)).unfold(-1, self.patch_len, self.stride)
        x = self.embed(x.reshape(b * c, -1, self.patch_len))
        x = self.dropout(x + self.pos)

        scores = None
        for layer in self.layers:
            x, scores = layer(x, scores)
        y = self.head(x.reshape(b, c, -1)).transpose(1, 2)
        return y * std + mean
