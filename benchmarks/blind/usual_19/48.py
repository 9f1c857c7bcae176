import math

import torch
import torch.nn as nn


class CachedAttention(nn.Module):
    """Causal attention with a preallocated key/value cache for inference.

    Call with the prompt and start_pos=0, then with one token at a time and its position:

        y = attn(prompt, 0)
        y = attn(token, prompt.size(1))
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, max_batch_size: int = 8, max_seq_len: int = 128):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.max_seq_len = max_seq_len
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        shape = (max_batch_size, max_seq_len, num_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    @torch.no_grad()
    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        q = self.wq(x).view(bsz, seqlen, self.num_heads, self.head_dim)
        k = self.wk(x).view(bsz, seqlen, self.num_heads, self.head_dim)
        v = self.wv(x).view(bsz, seqlen, self.num_heads, self.head_dim)

        self.cache_k[:bsz, start_pos : start_pos + seqlen] = k
        self.cache_v[:bsz, start_pos : start_pos + seqlen] = v

        keys = self.cache_k[:bsz].transpose(1, 2)
        values = self.cache_v[:bsz].transpose(1, 2)
        scores = torch.matmul(q.transpose(1, 2), keys.transpose(2, 3)) / math.sqrt(self.head_dim)

        if seqlen > 1:
            mask = torch.full((seqlen, self.max_seq_len), float("-inf"), device=x.device)
            scores = scores + torch.triu(mask, diagonal=start_pos + 1)

        probs = torch.softmax(scores.float(), dim=-1).type_as(q)
        out = torch.matmul(probs, values).transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(out)
