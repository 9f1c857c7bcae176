import math

import torch
import torch.nn as nn


class RelPositionSelfAttention(nn.Module):
    """Conformer self-attention with relative sinusoids; the encoding covers the offsets T - 1 ... -(T - 1).

    x: [B, T, dim], lengths: [B]. Includes pre-norm, dropout and the residual connection.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.d_k = dim // num_heads
        self.layer_norm = nn.LayerNorm(dim)
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)
        self.linear_pos = nn.Linear(dim, dim, bias=False)
        self.linear_out = nn.Linear(dim, dim)
        self.pos_bias_u = nn.Parameter(torch.empty(num_heads, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(num_heads, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout)

    def _encoding(self, t, dim, device, dtype):
        pos = torch.arange(t - 1, -t, -1.0, device=device)
        div = torch.exp(torch.arange(0, dim, 2.0, device=device) * -(math.log(10000.0) / dim))
        pe = torch.zeros(2 * t - 1, dim, device=device)
        pe[:, 0::2] = torch.sin(pos[:, None] * div)
        pe[:, 1::2] = torch.cos(pos[:, None] * div)
        return pe.to(dtype)

    @staticmethod
    def rel_shift(x):
        b, h, t, n = x.shape
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1)
        x = x.view(b, h, n + 1, t)[:, :, 1:].reshape(b, h, t, n)
        return x[..., : n // 2 + 1]

    def forward(self, x, lengths=None):
        b, t, d = x.shape
        residual = x
        x = self.layer_norm(x)
        q = self.linear_q(x).view(b, t, self.num_heads, self.d_k)
        k = self.linear_k(x).view(b, t, self.num_heads, self.d_k).permute(0, 2, 3, 1)
        v = self.linear_v(x).view(b, t, self.num_heads, self.d_k).transpose(1, 2)
        p = self.linear_pos(self._encoding(t, d, x.device, x.dtype)).view(2 * t - 1, self.num_heads, self.d_k)

        content = (q + self.pos_bias_u).transpose(1, 2) @ k
        position = (q + self.pos_bias_v).transpose(1, 2) @ p.permute(1, 2, 0)
        scores = (content + self.rel_shift(position)) / math.sqrt(self.d_k)
        if lengths is None:
            attn = scores.softmax(-1)
        else:
            pad = (torch.arange(t, device=x.device)[None, :] >= lengths[:, None])[:, None, None, :]
            attn = scores.masked_fill(pad, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(pad, 0.0)
        y = (self.dropout(attn) @ v).transpose(1, 2).reshape(b, t, d)
        return residual + self.dropout(self.linear_out(y))
