"""Long inputs on a small GPU: reader's chunked encoder attention."""
import math

import torch
from torch import nn


class ChunkedAttention(nn.Module):
    """Bidirectional attention, one chunk of keys at a time.

    mask: (batch, length) bool, True for real tokens.
    """

    def __init__(self, hidden_size=64, num_heads=4, chunk_size=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.chunk_size = chunk_size
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def heads(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.num_heads, self.head_size).transpose(1, 2)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q = self.heads(self.query(x)) / math.sqrt(self.head_size)
        k, v = self.heads(self.key(x)), self.heads(self.value(x))

        running_max = q.new_full((b, self.num_heads, n, 1), -1e30)
        denom = q.new_zeros(b, self.num_heads, n, 1)
        out = torch.zeros_like(q)

        for i in range(0, n, self.chunk_size):
            kc, vc = k[:, :, i:i + self.chunk_size], v[:, :, i:i + self.chunk_size]
            scores = torch.matmul(q, kc.transpose(-1, -2))
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None, None, i:i + self.chunk_size], float("-inf"))
            new_max = torch.maximum(running_max, scores.max(dim=-1, keepdim=True).values)
            probs = torch.exp(scores - new_max)
            denom = denom * torch.exp(running_max - new_max) + probs.sum(-1, keepdim=True)
            out = out + torch.matmul(probs, vc)
            running_max = new_max

        out = out / denom.clamp_min(1e-20)
        return self.dense(out.transpose(1, 2).reshape(b, n, -1))
