import math

import torch
import torch.nn as nn


def blockwise_attention(q, k, v, block_size, causal=False):
    """Memory efficient attention that visits the keys block by block.

    q, k, v: (batch, heads, length, head_dim). Keeps the running maximum, the running
    denominator and the unnormalised output for every query.
    """
    b, h, n, d = q.shape
    m = k.shape[2]
    scale = 1.0 / math.sqrt(d)

    row_max = q.new_full((b, h, n, 1), float("-inf"))
    row_sum = q.new_zeros((b, h, n, 1))
    acc = torch.zeros_like(q)
    q_idx = torch.arange(n, device=q.device)[:, None]

    for start in range(0, m, block_size):
        k_blk = k[:, :, start:start + block_size]
        v_blk = v[:, :, start:start + block_size]

        s = torch.matmul(q, k_blk.transpose(-1, -2)) * scale
        if causal:
            k_idx = start + torch.arange(k_blk.shape[2], device=q.device)[None, :]
            s = s.masked_fill(k_idx > q_idx, float("-inf"))

        blk_max = s.amax(dim=-1, keepdim=True)
        new_max = torch.maximum(row_max, blk_max)
        p = torch.exp(s - new_max)
        alpha = torch.exp(row_max - new_max)

        acc = acc * alpha + torch.matmul(p, v_blk)
        row_sum = row_sum + p.sum(dim=-1, keepdim=True)
        row_max = new_max

    return acc / row_sum


class BlockwiseSelfAttention(nn.Module):
    def __init__(self, dim=64, num_heads=4, block_size=8, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.causal = causal
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.in_proj(x).view(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(dim=2))
        y = blockwise_attention(q, k, v, self.block_size, self.causal)
        return self.out_proj(y.transpose(1, 2).reshape(b, n, c))
