"""Relative attention with segment memory, batch-first port."""
import math
from typing import Optional

import torch
from torch import nn, Tensor


def sinusoid_table(positions: Tensor, dim: int) -> Tensor:
    freq = torch.exp(torch.arange(0, dim, 2, device=positions.device).float() * (-math.log(10000.0) / dim))
    angles = positions[:, None] * freq[None, :]
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def relative_shift(scores: Tensor) -> Tensor:
    """Row i of (b, h, q, k) is moved to the left by q - 1 - i columns."""
    b, h, q, k = scores.shape
    padded = torch.cat((scores.new_zeros(b, h, q, 1), scores), dim=-1)
    padded = padded.view(b, h, k + 1, q)
    return padded[:, :, 1:].reshape(b, h, q, k)


class RelativeMemoryAttention(nn.Module):
    """Causal attention over ``[memory, x]`` with Transformer-XL position terms.

    The position term between a query and a key uses the sinusoid of their
    distance, so that a memory of any length can be put in front of the segment.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        assert dim % num_heads == 0
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_r = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.content_bias = nn.Parameter(torch.randn(num_heads, 1, self.head_dim) * 0.02)
        self.position_bias = nn.Parameter(torch.randn(num_heads, 1, self.head_dim) * 0.02)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Optional[Tensor] = None) -> Tensor:
        b, q_len, _ = x.shape
        context = x if memory is None else torch.cat((memory.detach(), x), dim=1)
        k_len = context.size(1)

        def heads(t: Tensor) -> Tensor:
            return t.view(t.size(0), -1, self.num_heads, self.head_dim).transpose(1, 2)

        q = heads(self.to_q(x))
        k, v = map(heads, self.to_kv(context).chunk(2, dim=-1))

        positions = torch.arange(k_len, device=x.device, dtype=torch.float)
        r = heads(self.to_r(sinusoid_table(positions, self.dim).to(x.dtype))[None])

        content = (q + self.content_bias) @ k.transpose(-1, -2)
        position = relative_shift((q + self.position_bias) @ r.transpose(-1, -2))
        scores = (content + position) / math.sqrt(self.head_dim)

        future = torch.ones(q_len, k_len, dtype=torch.bool, device=x.device).triu(k_len - q_len + 1)
        scores = scores.masked_fill(future, float("-inf"))
        weights = self.dropout(scores.softmax(dim=-1))
        out = (weights @ v).transpose(1, 2).reshape(b, q_len, self.dim)
        return self.to_out(out)
