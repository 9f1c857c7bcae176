import math
from typing import Optional

import torch
from torch import nn


class IncrementalAttention(nn.Module):
    """Attention for text generation.

    The prompt is given first with ``start_pos=0``. After that tokens are fed one by one with
    ``start_pos`` equal to the number of tokens that were processed so far. Inference only.

    Args:
        dim: model width.
        n_heads: number of heads.
        max_batch_size: largest batch for which the cache is allocated.
        max_seq_len: longest sequence (prompt + generated tokens).
    """

    def __init__(self, dim: int = 64, n_heads: int = 4, max_batch_size: int = 8, max_seq_len: int = 64):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.max_seq_len = max_seq_len
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

        shape = (max_batch_size, max_seq_len, n_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def make_mask(self, seqlen: int, start_pos: int, device) -> Optional[torch.Tensor]:
        if seqlen == 1:
            return None
        mask = torch.full((seqlen, self.max_seq_len), float("-inf"), device=device)
        return torch.triu(mask, diagonal=start_pos + 1)

    @torch.no_grad()
    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_heads, self.head_dim)

        self.cache_k[:bsz, start_pos:start_pos + seqlen] = xk
        self.cache_v[:bsz, start_pos:start_pos + seqlen] = xv

        keys = self.cache_k[:bsz].transpose(1, 2)
        values = self.cache_v[:bsz].transpose(1, 2)
        xq = xq.transpose(1, 2)

        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        mask = self.make_mask(seqlen, start_pos, x.device)
        if mask is not None:
            scores = scores + mask
        scores = torch.softmax(scores.float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, values)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)
