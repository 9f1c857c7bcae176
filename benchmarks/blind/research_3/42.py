import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalChunkAttention(nn.Module):
    """Causal local attention in chunks: a chunk of ``chunk_size`` queries reads its own
    chunk and the one before it. Cost is linear in the sequence length.

    Any length is accepted; the tail is filled up to a whole chunk and cut off again.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, chunk_size: int = 8, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.chunk_size = chunk_size
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=False)
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _chunks(self, t: torch.Tensor) -> torch.Tensor:
        # (B, T, D) -> (B, H, n_chunks, chunk, head_dim)
        B, T, _ = t.shape
        t = t.view(B, T // self.chunk_size, self.chunk_size, self.num_heads, self.head_dim)
        return t.permute(0, 3, 1, 2, 4)

    @staticmethod
    def _look_adjacent(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.roll(t, shifts=1, dims=2), t], dim=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, D = x.shape
        c = self.chunk_size
        pad = (-T) % c
        if pad:
            x = F.pad(x, (0, 0, 0, pad))

        q, k, v = (self._chunks(t) for t in self.query_key_value(x).chunk(3, dim=-1))
        k, v = self._look_adjacent(k), self._look_adjacent(v)

        scores = torch.einsum("bhnid,bhnjd->bhnij", q, k) / math.sqrt(self.head_dim)

        q_pos = torch.arange(c, device=x.device) + c
        k_pos = torch.arange(2 * c, device=x.device)
        future = k_pos[None, :] > q_pos[:, None]
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)

        probs = self.dropout(scores.softmax(dim=-1))
        out = torch.einsum("bhnij,bhnjd->bhnid", probs, v)
        out = out.permute(0, 2, 3, 1, 4).reshape(B, T + pad, D)
        return self.output(out[:, :T])
