import torch
import torch.nn as nn


class BlockwiseCausalAttention(nn.Module):
    """Exact causal attention that never holds the (T, T) matrix.

    Keys are visited in blocks. For every query we keep the largest score so
    far (m), the sum of exponentials relative to it (l) and the unnormalised
    output (acc); all are rescaled when a block brings a larger score.
    """

    def __init__(self, dim=64, num_heads=4, block=16):
        super().__init__()
        self.num_heads = num_heads
        self.block = block
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        d = c // self.num_heads
        q, k, v = [z.view(b, t, self.num_heads, d).transpose(1, 2) for z in self.qkv(x).split(c, dim=-1)]
        q = q * d ** -0.5
        rows = torch.arange(t, device=x.device)[:, None]

        m = q.new_full((b, self.num_heads, t, 1), float("-inf"))
        l = q.new_zeros(b, self.num_heads, t, 1)
        acc = torch.zeros_like(q)
        for start in range(0, t, self.block):
            end = min(start + self.block, t)
            cols = torch.arange(start, end, device=x.device)[None, :]
            s = q @ k[:, :, start:end].transpose(-2, -1)
            s = s.masked_fill(cols > rows, float("-inf"))
            # block 0 holds key 0, so m is finite for every row after it
            m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - m_new)
            fix = torch.exp(m - m_new)
            l = l * fix + p.sum(dim=-1, keepdim=True)
            acc = acc * fix + p @ v[:, :, start:end]
            m = m_new
        y = (acc / l).transpose(1, 2).reshape(b, t, c)
        return self.proj(y)
