import math

import torch
import torch.nn as nn

LOG2E = 1.4426950408889634


class TiledAttention(nn.Module):
    """Reference implementation of a tiled attention kernel.

    Follows the Triton kernel step by step: base-2 exponentials (log2(e) is folded into the scale),
    a lazy division at the end, and causal tiles above the diagonal that are skipped.
    """

    def __init__(self, dim=64, num_heads=4, block_m=16, block_n=8, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_m = block_m
        self.block_n = block_n
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def _tile(self, q, k, v, m_start):
        qk_scale = LOG2E / math.sqrt(self.head_dim)
        rows = torch.arange(m_start, m_start + q.size(2), device=q.device)
        n_end = min(m_start + q.size(2), k.size(2)) if self.causal else k.size(2)

        m_i = torch.full(q.shape[:-1], float("-inf"), device=q.device)
        l_i = torch.zeros(q.shape[:-1], device=q.device)
        acc = torch.zeros(q.shape, device=q.device)

        for n_start in range(0, n_end, self.block_n):
            n_stop = min(n_start + self.block_n, n_end)
            s = torch.matmul(q.float(), k[:, :, n_start:n_stop].float().transpose(-1, -2)) * qk_scale
            if self.causal:
                cols = torch.arange(n_start, n_stop, device=q.device)
                s = s.masked_fill(cols[None, :] > rows[:, None], float("-inf"))
            m_new = torch.maximum(m_i, s.amax(-1))
            alpha = torch.exp2(m_i - m_new)
            p = torch.exp2(s - m_new[..., None])
            l_i = l_i * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + torch.matmul(p, v[:, :, n_start:n_stop].float())
            m_i = m_new

        return (acc / l_i[..., None]).to(q.dtype)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        tiles = [self._tile(q[:, :, m:m + self.block_m], k, v, m) for m in range(0, t, self.block_m)]
        y = torch.cat(tiles, dim=2)
        return self.out(y.transpose(1, 2).reshape(b, t, c))
