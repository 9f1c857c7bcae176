from typing import Optional

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import functional as F


class KVCache(nn.Module):
    def __init__(self, max_batch_size, max_seq_length, n_heads, head_dim):
        super().__init__()
        shape = (max_batch_size, n_heads, max_seq_length, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)

    def update(self, input_pos, k_val, v_val):
        # input_pos: [S], k_val: [B, H, S, D]
        b = k_val.shape[0]
        self.k_cache[:b, :, input_pos] = k_val
        self.v_cache[:b, :, input_pos] = v_val
        return self.k_cache[:b], self.v_cache[:b]


class StaticCacheAttention(nn.Module):
    """Attention with a static cache, friendly to torch.compile (inference only).

    Shapes never depend on how much of the cache is filled: the queries always run against the full
    buffer, and row ``p`` of the causal mask hides every slot after position ``p``, filled or not.

    Args:
        input_pos: (S,) positions of the tokens in ``x``; defaults to a fresh prompt ``0..S-1``.
    """

    def __init__(self, dim: int = 64, n_head: int = 4, max_seq_length: int = 64, max_batch_size: int = 8):
        super().__init__()
        self.n_head = n_head
        self.head_dim = dim // n_head
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.kv_cache = KVCache(max_batch_size, max_seq_length, n_head, self.head_dim)
        causal = torch.tril(torch.ones(max_seq_length, max_seq_length, dtype=torch.bool))
        self.register_buffer("causal_mask", causal, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, input_pos: Optional[Tensor] = None) -> Tensor:
        bsz, seqlen, dim = x.shape
        if input_pos is None:
            input_pos = torch.arange(seqlen, device=x.device)
        q, k, v = self.wqkv(x).split(dim, dim=-1)
        q = q.view(bsz, seqlen, self.n_head, self.head_dim).transpose(1, 2)
        k = k.view(bsz, seqlen, self.n_head, self.head_dim).transpose(1, 2)
        v = v.view(bsz, seqlen, self.n_head, self.head_dim).transpose(1, 2)

        k, v = self.kv_cache.update(input_pos, k, v)
        mask = self.causal_mask[None, None, input_pos]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)
        return self.wo(y.transpose(1, 2).reshape(bsz, seqlen, dim))
