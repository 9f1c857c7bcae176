import math

import torch
import torch.nn as nn


def get_slopes(n):
    def power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_two(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_two(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiEncoderLayer(nn.Module):
    """Bidirectional encoder layer with the symmetric variant of ALiBi: the penalty is slope * |i - j|.

    Post-norm: the sum of residual and sublayer is normalised, as in the original transformer.
    There is no other source of position.

    src_key_padding_mask: [B, T], True at the positions to be ignored (convention of nn.MultiheadAttention).
    """

    def __init__(self, d_model=64, nhead=4, dim_feedforward=256, dropout=0.0):
        super().__init__()
        self.nhead = nhead
        self.wqkv = nn.Linear(d_model, 3 * d_model)
        self.wo = nn.Linear(d_model, d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, dim_feedforward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim_feedforward, d_model)
        )
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("slopes", torch.tensor(get_slopes(nhead)).view(1, nhead, 1, 1))

    def forward(self, src, src_key_padding_mask=None):
        B, T, D = src.shape
        q, k, v = self.wqkv(src).view(B, T, 3, self.nhead, D // self.nhead).permute(2, 0, 3, 1, 4)
        pos = torch.arange(T, device=src.device)
        bias = -self.slopes * (pos[:, None] - pos[None, :]).abs()
        logits = q @ k.mT / math.sqrt(D // self.nhead) + bias
        if src_key_padding_mask is not None:
            logits = logits.masked_fill(src_key_padding_mask[:, None, None, :], torch.finfo(logits.dtype).min)
        p = self.dropout(torch.softmax(logits, -1))
        y = self.wo((p @ v).transpose(1, 2).reshape(B, T, D))
        x = self.norm1(src + self.dropout(y))
        return self.norm2(x + self.dropout(self.ff(x)))
