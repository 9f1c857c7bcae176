import math
from typing import Optional

import torch
from torch import nn
import torch.nn.functional as F


class RelPositionalEncoding(nn.Module):
    """Sinusoids for the relative positions T-1, T-2, ..., 0, ..., -(T-1)."""

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def forward(self, length: int, device, dtype) -> torch.Tensor:
        pos = torch.arange(length - 1, -length, -1, device=device, dtype=torch.float32)
        div = torch.exp(
            torch.arange(0, self.d_model, 2, device=device, dtype=torch.float32)
            * (-math.log(10000.0) / self.d_model)
        )
        ang = pos[:, None] * div[None, :]
        pe = torch.zeros(pos.numel(), self.d_model, device=device)
        pe[:, 0::2] = ang.sin()
        pe[:, 1::2] = ang.cos()
        return pe.to(dtype)


class ConformerRelAttention(nn.Module):
    """Multi-headed self attention of the Conformer with Transformer-XL style relative positions.

    ``pad_mask`` is ``[B, T]`` with True on padded frames.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.h = n_heads
        self.d_k = d_model // n_heads
        self.layer_norm = nn.LayerNorm(d_model)
        self.pos_enc = RelPositionalEncoding(d_model)
        self.linear_q = nn.Linear(d_model, d_model)
        self.linear_k = nn.Linear(d_model, d_model)
        self.linear_v = nn.Linear(d_model, d_model)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.linear_out = nn.Linear(d_model, d_model)
        self.pos_bias_u = nn.Parameter(torch.empty(n_heads, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(n_heads, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def rel_shift(x: torch.Tensor) -> torch.Tensor:
        b, h, t, n = x.shape  # n == 2 * t - 1
        x = F.pad(x, (1, 0)).reshape(b, h, n + 1, t)
        x = x[:, :, :-1].reshape(b, h, t, n)
        return x[..., :t]

    def forward(self, x: torch.Tensor, pad_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        residual = x
        x = self.layer_norm(x)
        b, t, _ = x.shape
        q = self.linear_q(x).view(b, t, self.h, self.d_k)
        k = self.linear_k(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(self.pos_enc(t, x.device, x.dtype)).view(1, -1, self.h, self.d_k).transpose(1, 2)

        q_u = (q + self.pos_bias_u).transpose(1, 2)
        q_v = (q + self.pos_bias_v).transpose(1, 2)
        content = torch.matmul(q_u, k.transpose(-2, -1))
        position = self.rel_shift(torch.matmul(q_v, p.transpose(-2, -1)))
        scores = (content + position) / math.sqrt(self.d_k)
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask[:, None, None, :], torch.finfo(scores.dtype).min)
        attn = self.dropout(scores.softmax(dim=-1))
        out = torch.matmul(attn, v).transpose(1, 2).reshape(b, t, self.h * self.d_k)
        return residual + self.dropout(self.linear_out(out))
