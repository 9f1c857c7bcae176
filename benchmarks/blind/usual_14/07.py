from typing import Optional

import torch
import torch.nn as nn


def online_softmax_attention(q, k, v, scale: float, block: int, key_mask: Optional[torch.Tensor] = None):
    """Exact attention, one key block at a time (Rabe & Staats).

    q: (b, h, n, d); k, v: (b, h, m, d); key_mask: (b, m) bool, True = keep.
    """
    b, h, n, _ = q.shape
    m = k.shape[2]
    acc = torch.zeros(b, h, n, v.shape[-1], dtype=torch.float32, device=q.device)
    row_max = torch.full((b, h, n, 1), -1e30, dtype=torch.float32, device=q.device)
    row_sum = torch.zeros(b, h, n, 1, dtype=torch.float32, device=q.device)
    for start in range(0, m, block):
        kb = k[:, :, start : start + block]
        vb = v[:, :, start : start + block]
        s = (q @ kb.transpose(-1, -2)).float() * scale
        if key_mask is not None:
            s = s.masked_fill(~key_mask[:, None, None, start : start + block], float("-inf"))
        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        correction = torch.exp(row_max - new_max)
        row_sum = row_sum * correction + p.sum(dim=-1, keepdim=True)
        acc = acc + p @ vb.float()
        row_max = new_max
    return (acc / row_sum.clamp(min=1e-20)).to(q.dtype)


class MemoryEfficientAttention(nn.Module):
    def __init__(self, dim: int = 64, num_heads: int = 4, block_size: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.block_size = block_size
        self.scale = (dim // num_heads) ** -0.5
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, key_mask=None):
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = online_softmax_attention(q, k, v, self.scale, self.block_size, key_mask)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))
