import math

import torch
from torch import nn
import torch.nn.functional as F


class SlidingWindowAttention(nn.Module):
    """Local attention for the decoder: a token sees itself and the window_size - 1 tokens before it."""

    def __init__(self, dim: int = 128, n_heads: int = 4, window_size: int = 8, dropout: float = 0.0):
        super().__init__()
        assert dim % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.window_size = window_size
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def _window_mask(self, seq_len: int, device: torch.device) -> torch.Tensor:
        idx = torch.arange(seq_len, device=device)
        distance = idx.unsqueeze(1) - idx.unsqueeze(0)
        return distance < self.window_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, seqlen, dim = x.shape
        q = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~self._window_mask(seqlen, x.device), float("-inf"))
        probs = self.dropout(F.softmax(scores.float(), dim=-1).type_as(q))

        out = torch.matmul(probs, v).transpose(1, 2).contiguous().view(bsz, seqlen, dim)
        return self.wo(out)
