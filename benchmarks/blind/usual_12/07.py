import torch
import torch.nn as nn


class MemoryEfficientAttention(nn.Module):
    """Exact self-attention computed block by block over the keys.

    Only a (seq, block_size) slice of the score matrix exists at any time; the softmax is
    built up with a running maximum and a running sum.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, block_size: int = 16, causal: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.causal = causal
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = (
            t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        q = q * self.head_dim**-0.5

        acc = torch.zeros_like(q)
        row_sum = q.new_zeros(b, self.num_heads, n, 1)
        row_max = q.new_full((b, self.num_heads, n, 1), -1e30)
        q_pos = torch.arange(n, device=x.device)

        for start in range(0, n, self.block_size):
            stop = min(start + self.block_size, n)
            kb, vb = k[:, :, start:stop], v[:, :, start:stop]
            s = q @ kb.transpose(-1, -2)
            if self.causal:
                k_pos = torch.arange(start, stop, device=x.device)
                s = s.masked_fill(k_pos[None, :] > q_pos[:, None], -1e30)

            new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - new_max)
            correction = torch.exp(row_max - new_max)
            row_sum = row_sum * correction + p.sum(dim=-1, keepdim=True)
            acc = acc + p @ vb
            row_max = new_max

        out = acc / row_sum
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))
