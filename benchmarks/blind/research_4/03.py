import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def relative_sinusoids(length, dim, device=None):
    """Sinusoids for the offsets length-1, ..., 0, ..., -(length-1); shape [2*length-1, dim]."""
    offsets = torch.arange(length - 1, -length, -1, dtype=torch.float32, device=device)
    freq = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32, device=device) * (-math.log(10000.0) / dim))
    angles = offsets[:, None] * freq[None, :]
    table = torch.zeros(2 * length - 1, dim, device=device)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles)
    return table


class ConformerRelativeAttention(nn.Module):
    """Multi-head self-attention module of the Conformer with relative sinusoidal encoding.

    Query i and key j share the encoding of the offset i - j.

    Args:
        dim: model width.
        num_heads: number of heads.
        dropout: applied to the weights and to the output.
    """

    def __init__(self, dim=144, num_heads=4, dropout=0.1):
        super().__init__()
        self.h = num_heads
        self.d_k = dim // num_heads
        self.norm = nn.LayerNorm(dim)
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)
        self.linear_pos = nn.Linear(dim, dim, bias=False)
        self.linear_out = nn.Linear(dim, dim)
        self.pos_bias_u = nn.Parameter(torch.empty(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def rel_shift(x):
        """[B, H, T, 2T-1] indexed by offset -> [B, H, T, T] indexed by key."""
        b, h, t, n = x.shape
        x = F.pad(x, (0, 1))
        x = x.view(b, h, n + 1, t)[:, :, 1:]
        return x.reshape(b, h, t, n)[..., : n // 2 + 1]

    def forward(self, x, mask=None):
        """x: [B, T, dim]; mask: [B, T] with True at real frames."""
        b, t, dim = x.shape
        y = self.norm(x)
        q = self.linear_q(y).view(b, t, self.h, self.d_k)
        k = self.linear_k(y).view(b, t, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(y).view(b, t, self.h, self.d_k).transpose(1, 2)
        pos = relative_sinusoids(t, dim, x.device).to(x.dtype)
        p = self.linear_pos(pos).view(-1, self.h, self.d_k).transpose(0, 1)

        q_u = (q + self.pos_bias_u).transpose(1, 2)
        q_v = (q + self.pos_bias_v).transpose(1, 2)
        content = q_u @ k.transpose(-2, -1)
        position = self.rel_shift(q_v @ p.transpose(-2, -1))
        scores = (content + position) / math.sqrt(self.d_k)

        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        attn = self.dropout(scores.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(b, t, dim)
        return x + self.dropout(self.linear_out(out))
