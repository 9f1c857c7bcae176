import math

import torch
import torch.nn as nn


def streaming_attention(q, k, v, block_size=32, causal=False):
    """Exact softmax attention that never materialises more than ``block_size`` columns of scores.

    q, k, v: (batch, heads, length, head_dim)
    """
    b, h, n, d = q.shape
    m = k.shape[2]
    scale = 1.0 / math.sqrt(d)

    acc = q.new_zeros(b, h, n, d)
    row_sum = q.new_zeros(b, h, n, 1)
    row_max = q.new_full((b, h, n, 1), float("-inf"))
    q_pos = torch.arange(n, device=q.device)[:, None]

    for start in range(0, m, block_size):
        kb = k[:, :, start:start + block_size]
        vb = v[:, :, start:start + block_size]
        s = torch.matmul(q, kb.transpose(-1, -2)) * scale
        if causal:
            k_pos = torch.arange(start, start + kb.shape[2], device=q.device)[None, :]
            s = s.masked_fill(k_pos > q_pos, float("-inf"))

        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        correction = torch.exp(row_max - new_max)

        acc = acc * correction + torch.matmul(p, vb)
        row_sum = row_sum + p.sum(dim=-1, keepdim=True)
        row_max = new_max

    return acc / row_sum


class MemoryEfficientAttention(nn.Module):
    def __init__(self, embed_dim: int = 64, num_heads: int = 4, block_size: int = 8, causal: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.block_size = block_size
        self.causal = causal
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.in_proj(x).view(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = streaming_attention(q, k, v, self.block_size, self.causal)
        return self.out_proj(out.transpose(1, 2).reshape(b, n, c))
