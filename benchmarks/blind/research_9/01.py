import math
from typing import Optional, Sequence

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_out_lengths(lengths: torch.Tensor, kernels: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Number of frames that a stack of unpadded 1-D convolutions leaves for every waveform length."""
    for k, s in zip(kernels, strides):
        lengths = torch.div(lengths - k, s, rounding_mode="floor") + 1
    return lengths


class SelfAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.dropout = dropout
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        b, t, c = x.shape
        # the scale is folded into the query, as in fairseq
        q = (self.q_proj(x) * self.scaling).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        logits = q @ k.transpose(-1, -2)
        if bias is not None:
            logits = logits + bias
        p = F.dropout(logits.float().softmax(-1).type_as(logits), self.dropout, self.training)
        return self.out_proj((p @ v).transpose(1, 2).reshape(b, t, c))


class Wav2VecContextNetwork(nn.Module):
    """Feature extractor + one context layer of wav2vec 2.0.

    Args:
        wav: float waveform ``[B, samples]``, zero padded on the right.
        wav_lengths: valid samples per row. ``None`` means that nothing is padded.

    Returns the context ``[B, frames, dim]`` and the number of valid frames per row.
    """

    KERNELS = (10, 3, 3)
    STRIDES = (5, 2, 2)

    def __init__(self, dim: int = 64, num_heads: int = 4, conv_dim: int = 32, dropout: float = 0.1):
        super().__init__()
        convs, c_in = [], 1
        for k, s in zip(self.KERNELS, self.STRIDES):
            convs += [nn.Conv1d(c_in, conv_dim, k, stride=s, bias=False), nn.GELU()]
            c_in = conv_dim
        self.extractor = nn.Sequential(*convs)
        self.project = nn.Sequential(nn.LayerNorm(conv_dim), nn.Linear(conv_dim, dim))
        self.pos_conv = nn.Conv1d(dim, dim, 9, padding=4, groups=4)
        self.attn = SelfAttention(dim, num_heads, dropout)
        self.attn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.ffn_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, wav: torch.Tensor, wav_lengths: Optional[torch.Tensor] = None):
        x = self.project(self.extractor(wav.unsqueeze(1)).transpose(1, 2))
        b, t, _ = x.shape
        bias = None
        if wav_lengths is not None:
            frames = conv_out_lengths(wav_lengths, self.KERNELS, self.STRIDES).clamp(min=1, max=t)
            keep = torch.arange(t, device=x.device)[None, :] < frames[:, None]
            # padded frames must be zero before the positional convolution, or they reach the valid ones
            x = x * keep.unsqueeze(-1).to(x.dtype)
            bias = (1.0 - keep[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        else:
            frames = torch.full((b,), t, device=x.device, dtype=torch.long)
        x = x + F.gelu(self.pos_conv(x.transpose(1, 2))).transpose(1, 2)
        x = self.attn_norm(x + self.dropout(self.attn(x, bias)))
        x = self.ffn_norm(x + self.dropout(self.ffn(x)))
        return x, frames
