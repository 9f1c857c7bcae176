import math

import torch
import torch.nn as nn


class StrictlyCausalAttention(nn.Module):
    """Self-attention in which position t may look at 0 .. t-1 only, not at itself.

    Used by the two-stream predictor, where the content of the current token has to stay unknown. A
    learned null key/value in front of the sequence is always visible, so the first position has
    something to attend to.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query = nn.Linear(dim, dim)
        self.memory = nn.Linear(dim, 2 * dim)
        self.null_kv = nn.Parameter(torch.randn(2, num_heads, 1, self.head_dim) * 0.02)
        self.proj = nn.Linear(dim, dim)

    def forward(self, query_stream: torch.Tensor, content_stream: torch.Tensor) -> torch.Tensor:
        """Both streams are (batch, length, dim)."""
        b, n, d = content_stream.shape
        h, hd = self.num_heads, self.head_dim

        q = self.query(query_stream).view(b, n, h, hd).transpose(1, 2)
        k, v = self.memory(content_stream).view(b, n, 2, h, hd).permute(2, 0, 3, 1, 4)

        null_k, null_v = self.null_kv.unsqueeze(1).expand(-1, b, -1, -1, -1)
        k = torch.cat([null_k, k], dim=2)
        v = torch.cat([null_v, v], dim=2)

        # column 0 is the null entry, column j + 1 is token j
        rows = torch.arange(n, device=q.device)[:, None]
        cols = torch.arange(n + 1, device=q.device)[None, :]
        scores = q @ k.transpose(-2, -1) / math.sqrt(hd)
        scores = scores.masked_fill(cols > rows, float("-inf"))

        out = scores.softmax(dim=-1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, n, d))
