import math

import torch
from torch import nn


class BlockwiseCausalAttention(nn.Module):
    """Memory-efficient causal attention: an exact softmax computed block by block.

    Follows Rabe & Staats (2021) and FlashAttention: running row maximum ``m``, running
    denominator ``l`` and an unnormalised accumulator ``acc``, all rescaled as ``m`` grows.
    Key blocks in the future of a query block are skipped.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, q_block: int = 16, k_block: int = 8):
        super().__init__()
        assert dim % num_heads == 0
        self.h = num_heads
        self.d = dim // num_heads
        self.q_block = q_block
        self.k_block = k_block
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def _attend_block(self, q, k, v, q_start):
        Tq = q.shape[-2]
        q_pos = torch.arange(q_start, q_start + Tq, device=q.device)[:, None]
        m = q.new_full((*q.shape[:-1], 1), float("-inf"))
        l = torch.zeros_like(m)
        acc = torch.zeros_like(q)

        # key 0 is visible to every query, so m is finite after the first block
        for k_start in range(0, q_start + Tq, self.k_block):
            kb = k[..., k_start:k_start + self.k_block, :]
            vb = v[..., k_start:k_start + self.k_block, :]
            s = q @ kb.transpose(-1, -2)
            if k_start + kb.shape[-2] - 1 > q_start:
                k_pos = torch.arange(k_start, k_start + kb.shape[-2], device=q.device)[None, :]
                s = s.masked_fill(k_pos > q_pos, float("-inf"))
            m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
            alpha = torch.exp(m - m_new)
            p = torch.exp(s - m_new)
            l = l * alpha + p.sum(dim=-1, keepdim=True)
            acc = acc * alpha + p @ vb
            m = m_new
        return acc / l

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        q = q / math.sqrt(self.d)
        blocks = [
            self._attend_block(q[:, :, i:i + self.q_block], k, v, i) for i in range(0, T, self.q_block)
        ]
        y = torch.cat(blocks, dim=2)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))
