import math

import torch
import torch.nn as nn


def blockwise_attention(q, k, v, block_size):
    """Exact attention without the full score matrix; walks over the keys block by block.

    q: (..., Tq, d), k and v: (..., Tk, d)
    """
    scale = 1.0 / math.sqrt(q.size(-1))
    row_max = q.new_full(q.shape[:-1] + (1,), -float("inf"))
    row_sum = q.new_zeros(q.shape[:-1] + (1,))
    acc = torch.zeros(q.shape[:-1] + (v.size(-1),), dtype=q.dtype, device=q.device)

    for start in range(0, k.size(-2), block_size):
        kb = k[..., start:start + block_size, :]
        vb = v[..., start:start + block_size, :]
        s = (q @ kb.transpose(-1, -2)) * scale
        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        correction = torch.exp(row_max - new_max)
        row_sum = row_sum * correction + p.sum(dim=-1, keepdim=True)
        acc = acc + p @ vb
        row_max = new_max

    return acc / row_sum


class MemoryEfficientAttention(nn.Module):
    def __init__(self, dim: int = 64, num_heads: int = 4, block_size: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.block_size = block_size
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        B, T, C = x.shape
        S = context.size(1)
        q = self.to_q(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        k, v = self.to_kv(context).view(B, S, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        out = blockwise_attention(q, k, v, self.block_size)
        return self.to_out(out.transpose(1, 2).reshape(B, T, C))
