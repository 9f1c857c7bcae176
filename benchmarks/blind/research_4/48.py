from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvSubsampler(nn.Module):
    """Two strided convolutions; the output has a quarter of the frames."""

    def __init__(self, n_mels: int, dim: int):
        super().__init__()
        self.conv1 = nn.Conv1d(n_mels, dim, kernel_size=3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, kernel_size=3, stride=2, padding=1)

    def forward(self, feats: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv1(feats.transpose(1, 2)))
        x = F.gelu(self.conv2(x))
        return x.transpose(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, dim: int, num_heads: int, dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim), nn.Dropout(dropout)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        y, _ = self.attn(y, y, y, key_padding_mask=pad, need_weights=False)
        x = x + self.dropout(y)
        return x + self.ff(self.norm2(x))


class AcousticEncoder(nn.Module):
    """Speech encoder on log-mel features.

    Args:
        n_mels: feature bins.
        dim: model width.
        num_heads: heads per layer.
        num_layers: layers.

    Call:
        feats: [B, T, n_mels], zero-padded at the end.
        feat_lengths: [B], real frames of each utterance.

    Returns the encoded frames, [B, ceil(T / 4), dim].
    """

    def __init__(self, n_mels: int = 80, dim: int = 144, num_heads: int = 4, num_layers: int = 2, dropout: float = 0.1):
        super().__init__()
        self.subsample = ConvSubsampler(n_mels, dim)
        self.pos_conv = nn.Conv1d(dim, dim, kernel_size=31, padding=15, groups=16)
        self.layers = nn.ModuleList([EncoderLayer(dim, num_heads, dropout) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, feats: torch.Tensor, feat_lengths: Optional[torch.Tensor] = None) -> torch.Tensor:
        x = self.subsample(feats)
        b, t, _ = x.shape
        if feat_lengths is None:
            feat_lengths = torch.full((b,), feats.size(1), device=x.device)
        pad = torch.arange(t, device=x.device)[None, :] >= feat_lengths[:, None]
        x = x.masked_fill(pad.unsqueeze(-1), 0.0)
        x = x + F.gelu(self.pos_conv(x.transpose(1, 2))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, pad)
        return self.norm(x)
