import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    """Self-attention for generation, with key/value buffers allocated once.

    Call with the prompt and ``start_pos=0``, then token by token with the position of
    the token.
    """

    def __init__(self, dim=128, n_heads=4, max_batch_size=8, max_seq_len=128):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

        shape = (max_batch_size, n_heads, max_seq_len, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    @torch.no_grad()
    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        bsz, seqlen, dim = x.shape
        end_pos = start_pos + seqlen

        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        xk = self.wk(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        xv = self.wv(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)

        self.cache_k[:bsz, :, start_pos:end_pos] = xk
        self.cache_v[:bsz, :, start_pos:end_pos] = xv
        keys = self.cache_k[:bsz]
        values = self.cache_v[:bsz]

        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if seqlen > 1:
            mask = torch.full((seqlen, keys.size(2)), float("-inf"), device=x.device)
            mask = torch.triu(mask, diagonal=start_pos + 1)
            scores = scores + mask
        probs = F.softmax(scores.float(), dim=-1).type_as(xq)
        output = torch.matmul(probs, values)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, dim)
        return self.wo(output)
