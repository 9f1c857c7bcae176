from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class ChunkedCrossAttention(nn.Module):
    """Chunked cross-attention on retrieved neighbours for a left-to-right language model (RETRO).

    The sequence is cut into chunks of ``chunk_size`` tokens. The text of each chunk is used as the
    query to the retrieval database, which gives ``K`` neighbours of ``R`` tokens per chunk.

    Args:
        x: hidden states ``[B, T, dim]``; ``T`` need not be a multiple of the chunk size
        neighbours: encoded neighbours ``[B, ceil(T / chunk_size), K, R, dim]``
        neighbour_mask: optional bool ``[B, ceil(T / chunk_size), K, R]``, True for real tokens
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, chunk_size: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.chunk_size = chunk_size
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def _heads(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(
        self, x: torch.Tensor, neighbours: torch.Tensor, neighbour_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        b, t, d = x.shape
        m = self.chunk_size
        n_chunks = neighbours.size(1)

        h = self.norm(x)
        h = F.pad(h, (0, 0, 0, n_chunks * m - t))
        h = h.reshape(b * n_chunks, m, d)
        context = neighbours.reshape(b * n_chunks, -1, d)

        mask = None
        if neighbour_mask is not None:
            mask = neighbour_mask.reshape(b * n_chunks, 1, 1, -1)

        out = F.scaled_dot_product_attention(
            self._heads(self.to_q(h)),
            self._heads(self.to_k(context)),
            self._heads(self.to_v(context)),
            attn_mask=mask,
        )
        out = self.to_out(out.transpose(1, 2).reshape(b * n_chunks, m, d))
        out = out.reshape(b, n_chunks * m, d)[:, :t]
        return x + out
