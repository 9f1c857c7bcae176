import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class CachedMultiQueryAttention(nn.Module):
    """Multi-query attention with a preallocated cache for generation.

    Call it with the whole prompt and ``start_pos=0`` first, then with one token at a time.

    Args:
        dim: model width
        n_heads: query heads; keys and values have a single head
        max_batch_size, max_seq_len: size of the cache
    """

    def __init__(self, dim: int = 64, n_heads: int = 4, max_batch_size: int = 8, max_seq_len: int = 64):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.max_seq_len = max_seq_len

        self.wq = nn.Linear(dim, dim, bias=False)
        self.wkv = nn.Linear(dim, 2 * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.pos_emb = nn.Embedding(max_seq_len, dim)

        shape = (max_batch_size, max_seq_len, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def _mask(self, start_pos: int, seqlen: int, device) -> Optional[torch.Tensor]:
        if seqlen == 1:
            return None
        mask = torch.full((seqlen, self.max_seq_len), float("-inf"), device=device)
        return torch.triu(mask, diagonal=start_pos + 1)

    @torch.no_grad()
    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        x = x + self.pos_emb.weight[start_pos:start_pos + seqlen]

        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk, xv = self.wkv(x).chunk(2, dim=-1)

        self.cache_k[:bsz, start_pos:start_pos + seqlen] = xk
        self.cache_v[:bsz, start_pos:start_pos + seqlen] = xv
        keys = self.cache_k[:bsz]
        values = self.cache_v[:bsz]

        scores = torch.einsum("bshd,btd->bhst", xq, keys) / math.sqrt(self.head_dim)
        mask = self._mask(start_pos, seqlen, x.device)
        if mask is not None:
            scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)

        output = torch.einsum("bhst,btd->bshd", scores, values)
        return self.wo(output.reshape(bsz, seqlen, -1))
