from typing import Optional, Sequence

import torch
import torch.nn as nn
import torch.nn.functional as F


class PostNormLayer(nn.Module):
    def __init__(self, dim: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.attn = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, padding):
        y, _ = self.attn(x, x, x, key_padding_mask=padding, need_weights=False)
        x = self.norm1(x + self.dropout(y))
        return self.norm2(x + self.dropout(self.fc2(F.gelu(self.fc1(x)))))


class WaveEncoder(nn.Module):
    """Convolutional front end and transformer on raw audio, after wav2vec 2.0.

    Args:
        wave: ``[B, samples]``, padded on the right
        lengths: number of samples of each recording; they are converted to frames with the
            arithmetic of the convolutions
    Returns:
        frames ``[B, T, dim]`` and the number of valid frames ``[B]`` (or None)
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_layers: int = 2, kernels: Sequence[int] = (10, 3, 3),
                 strides: Sequence[int] = (5, 2, 2), pos_kernel: int = 16, dropout: float = 0.1):
        super().__init__()
        self.kernels, self.strides = tuple(kernels), tuple(strides)
        channels = [1] + [dim] * len(self.kernels)
        self.convs = nn.ModuleList(
            [nn.Conv1d(channels[i], channels[i + 1], k, s, bias=False)
             for i, (k, s) in enumerate(zip(self.kernels, self.strides))]
        )
        self.feature_norm = nn.LayerNorm(dim)
        self.feature_proj = nn.Linear(dim, dim)
        self.pos_conv = nn.Conv1d(dim, dim, pos_kernel, padding=pos_kernel // 2, groups=4)
        self.trim = 1 if pos_kernel % 2 == 0 else 0
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList([PostNormLayer(dim, num_heads, dropout) for _ in range(num_layers)])

    def frame_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        for kernel, stride in zip(self.kernels, self.strides):
            lengths = torch.div(lengths - kernel, stride, rounding_mode="floor") + 1
        return lengths

    def forward(self, wave: torch.Tensor, lengths: Optional[torch.Tensor] = None):
        x = wave.unsqueeze(1)
        for conv in self.convs:
            x = F.gelu(conv(x))
        x = self.feature_proj(self.feature_norm(x.transpose(1, 2)))

        padding, frames = None, None
        if lengths is not None:
            frames = self.frame_lengths(lengths).clamp(min=1)
            padding = torch.arange(x.size(1), device=x.device)[None, :] >= frames[:, None]
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)

        pos = self.pos_conv(x.transpose(1, 2))
        if self.trim:
            pos = pos[:, :, :-1]
        x = self.norm(x + F.gelu(pos).transpose(1, 2))
        for layer in self.layers:
            x = layer(x, padding)
        return x, frames
