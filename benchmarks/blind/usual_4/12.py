import math
from typing import Optional

import torch
from torch import Tensor, nn


def alibi_slopes(n_heads: int) -> Tensor:
    def power_of_two(n):
        start = 2 ** (-8.0 / n)
        return [start ** (i + 1) for i in range(n)]

    if math.log2(n_heads).is_integer():
        return torch.tensor(power_of_two(n_heads))
    closest = 2 ** math.floor(math.log2(n_heads))
    extra = power_of_two(2 * closest)[0::2][: n_heads - closest]
    return torch.tensor(power_of_two(closest) + extra)


class AlibiEncoderLayer(nn.Module):
    """Bidirectional encoder layer for masked language modelling.

    Has no position embeddings: every head penalises a key linearly in its distance from the
    query, each head with a slope of its own.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 8, d_ff: int = 256, dropout: float = 0.1):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.norm_attn = nn.LayerNorm(d_model)
        self.norm_ff = nn.LayerNorm(d_model)
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.Wo = nn.Linear(d_model, d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))
        self.drop = nn.Dropout(dropout)
        self.register_buffer("slopes", alibi_slopes(n_heads).view(1, n_heads, 1, 1), persistent=False)

    def _bias(self, n: int, device) -> Tensor:
        pos = torch.arange(n, device=device)
        distance = pos.view(1, n) - pos.view(n, 1)
        return self.slopes * distance

    def _attend(self, x: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.Wqkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.n_heads, self.d_head).transpose(1, 2) for t in (q, k, v))
        att = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        att = att + self._bias(n, x.device)
        if padding_mask is not None:
            att = att.masked_fill(padding_mask[:, None, None, :], torch.finfo(att.dtype).min)
        att = self.drop(att.softmax(dim=-1))
        return self.Wo((att @ v).transpose(1, 2).reshape(b, n, d))

    def forward(self, x: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """padding_mask: (batch, length), True at padding."""
        x = x + self.drop(self._attend(self.norm_attn(x), padding_mask))
        return x + self.drop(self.ff(self.norm_ff(x)))
