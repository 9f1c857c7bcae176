import torch
import torch.nn as nn


class BlockwiseCausalAttention(nn.Module):
    """Exact causal attention computed over key blocks with an online softmax.

    The (T, T) score matrix is never stored as a whole; the result equals ordinary softmax attention.
    """

    def __init__(self, dim=64, num_heads=4, block_size=8):
        super().__init__()
        self.h = num_heads
        self.d = dim // num_heads
        self.block_size = block_size
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def _stream(self, q, k, v):
        b, h, t, d = q.shape
        row_max = q.new_full((b, h, t, 1), float("-inf"))
        row_sum = q.new_zeros((b, h, t, 1))
        acc = torch.zeros_like(q)
        q_pos = torch.arange(t, device=q.device)[:, None]

        for start in range(0, t, self.block_size):
            stop = min(start + self.block_size, t)
            kb, vb = k[:, :, start:stop], v[:, :, start:stop]
            scores = q @ kb.transpose(-1, -2)
            k_pos = torch.arange(start, stop, device=q.device)[None, :]
            scores = scores.masked_fill(k_pos > q_pos, float("-inf"))

            new_max = torch.maximum(row_max, scores.amax(dim=-1, keepdim=True))
            p = torch.exp(scores - new_max)
            row_sum = row_sum * torch.exp(row_max - new_max) + p.sum(dim=-1, keepdim=True)
            acc = acc + p @ vb
            row_max = new_max

        return acc / row_sum

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        y = self._stream(q * self.d ** -0.5, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))
