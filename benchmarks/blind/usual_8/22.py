import math

import torch
import torch.nn as nn


def blockwise_attention(q, k, v, block_size, scale):
    """Exact attention computed over blocks of keys, without the full score matrix.

    q: (batch, heads, n_q, d), k and v: (batch, heads, n_k, d)
    """
    b, h, n_q, d = q.shape
    running_max = q.new_full((b, h, n_q, 1), float("-inf"))
    running_sum = q.new_zeros((b, h, n_q, 1))
    acc = q.new_zeros((b, h, n_q, d))

    for start in range(0, k.size(2), block_size):
        k_blk = k[:, :, start:start + block_size]
        v_blk = v[:, :, start:start + block_size]

        s = torch.matmul(q, k_blk.transpose(-1, -2)) * scale
        new_max = torch.maximum(running_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        correction = torch.exp(running_max - new_max)

        running_sum = running_sum + p.sum(dim=-1, keepdim=True)
        acc = acc * correction + torch.matmul(p, v_blk)
        running_max = new_max

    return acc / running_sum


class MemoryEfficientAttention(nn.Module):
    """Bidirectional self-attention with memory linear in the sequence length."""

    def __init__(self, dim: int = 64, num_heads: int = 4, block_size: int = 16):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        out = blockwise_attention(q, k, v, self.block_size, 1.0 / math.sqrt(self.head_dim))
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))
