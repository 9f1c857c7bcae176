import torch
from torch import nn


class ChunkedAttention(nn.Module):
    """Exact bidirectional attention that never builds the full (n, n) matrix.

    Keys are visited chunk by chunk while a running maximum and denominator are kept.
    """

    def __init__(self, dim=64, heads=4, chunk_size=32):
        super().__init__()
        self.heads = heads
        self.chunk_size = chunk_size
        self.scale = (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def _heads(self, t):
        b, n, d = t.shape
        return t.view(b, n, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x, mask=None):
        """mask: (b, n) bool, True keeps the key."""
        b, n, d = x.shape
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = map(self._heads, (self.to_q(x), k, v))
        q = q * self.scale

        out = torch.zeros_like(q)
        row_sum = q.new_zeros(b, self.heads, n, 1)
        row_max = q.new_full((b, self.heads, n, 1), torch.finfo(q.dtype).min)

        for lo in range(0, n, self.chunk_size):
            hi = min(lo + self.chunk_size, n)
            sim = q @ k[:, :, lo:hi].transpose(-1, -2)
            if mask is not None:
                sim = sim.masked_fill(~mask[:, None, None, lo:hi], float("-inf"))
            new_max = torch.maximum(row_max, sim.amax(dim=-1, keepdim=True))
            p = (sim - new_max).exp()
            correction = (row_max - new_max).exp()
            row_sum = row_sum * correction + p.sum(dim=-1, keepdim=True)
            out = out + p @ v[:, :, lo:hi]
            row_max = new_max

        out = out / row_sum.clamp(min=1e-10)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))
