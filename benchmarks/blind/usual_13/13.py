import math

import torch
import torch.nn as nn


class BlockwiseAttention(nn.Module):
    """Memory-efficient causal attention, streaming over key blocks with an online softmax."""

    def __init__(self, embed_dim=64, num_heads=4, block=16):
        super().__init__()
        self.num_heads = num_heads
        self.block = block
        self.head_dim = embed_dim // num_heads
        self.wqkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.wo = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.wqkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        # base-2 exponentials, hence log2(e) in the scale
        q = q * (math.log2(math.e) / math.sqrt(self.head_dim))

        rows = torch.arange(n, device=x.device)
        m = q.new_full((b, self.num_heads, n, 1), -1e30)
        l = q.new_zeros((b, self.num_heads, n, 1))
        acc = torch.zeros_like(q)

        for start in range(0, n, self.block):
            kb = k[:, :, start:start + self.block]
            vb = v[:, :, start:start + self.block]
            s = q @ kb.transpose(-1, -2)
            cols = start + torch.arange(kb.size(2), device=x.device)
            s = s.masked_fill(cols[None, :] > rows[:, None], float("-inf"))
            m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
            p = torch.exp2(s - m_new)
            alpha = torch.exp2(m - m_new)
            l = l * alpha + p.sum(dim=-1, keepdim=True)
            acc = acc * alpha + p @ vb
            m = m_new

        out = acc / l
        return self.wo(out.transpose(1, 2).reshape(b, n, e))
