import torch
import torch.nn as nn


class BlockwiseAttention(nn.Module):
    """Memory-efficient causal attention (Rabe & Staats): keys/values are visited in blocks
    and the softmax is accumulated online, so the full score matrix is never built."""

    def __init__(self, dim=64, heads=4, block_size=16):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.block_size = block_size
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.to_q(x)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.view(b, n, self.heads, self.dim_head).transpose(1, 2) for t in (q, k, v))
        q = q * self.dim_head ** -0.5

        acc = torch.zeros_like(q)
        row_sum = q.new_zeros(b, self.heads, n, 1)
        row_max = q.new_full((b, self.heads, n, 1), torch.finfo(q.dtype).min)
        q_pos = torch.arange(n, device=x.device)

        for start in range(0, n, self.block_size):
            end = min(start + self.block_size, n)
            kb, vb = k[:, :, start:end], v[:, :, start:end]
            s = q @ kb.transpose(-1, -2)
            blocked = torch.arange(start, end, device=x.device)[None, :] > q_pos[:, None]
            s = s.masked_fill(blocked, torch.finfo(s.dtype).min)

            new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - new_max).masked_fill(blocked, 0.0)
            correction = torch.exp(row_max - new_max)

            row_sum = row_sum * correction + p.sum(dim=-1, keepdim=True)
            acc = acc + p @ vb
            row_max = new_max

        out = acc / row_sum.clamp(min=1e-10)
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
