import torch
import torch.nn as nn
from torch.nn import functional as F


class KVCache(nn.Module):
    def __init__(self, max_batch_size, max_seq_length, n_heads, head_dim):
        super().__init__()
        cache_shape = (max_batch_size, n_heads, max_seq_length, head_dim)
        self.register_buffer("k_cache", torch.zeros(cache_shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(cache_shape), persistent=False)

    def update(self, start_pos, k_val, v_val):
        # k_val, v_val: [B, H, S, D]
        bsz, _, seqlen, _ = k_val.shape
        self.k_cache[:bsz, :, start_pos:start_pos + seqlen] = k_val
        self.v_cache[:bsz, :, start_pos:start_pos + seqlen] = v_val
        return self.k_cache[:bsz], self.v_cache[:bsz]


class Attention(nn.Module):
    """Inference attention with static key/value buffers, so that shapes never change under torch.compile.

    Call it with the prompt and ``start_pos=0``, then token by token with the position of the token.
    """

    def __init__(self, dim: int = 64, n_head: int = 4, max_batch_size: int = 4, max_seq_length: int = 128):
        super().__init__()
        assert dim % n_head == 0
        self.n_head = n_head
        self.head_dim = dim // n_head
        self.dim = dim
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.kv_cache = KVCache(max_batch_size, max_seq_length, n_head, self.head_dim)
        self.register_buffer(
            "causal_mask", torch.tril(torch.ones(max_seq_length, max_seq_length, dtype=torch.bool)), persistent=False
        )

    @torch.no_grad()
    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        q, k, v = self.wqkv(x).split([self.dim, self.dim, self.dim], dim=-1)
        q = q.view(bsz, seqlen, self.n_head, self.head_dim).transpose(1, 2)
        k = k.view(bsz, seqlen, self.n_head, self.head_dim).transpose(1, 2)
        v = v.view(bsz, seqlen, self.n_head, self.head_dim).transpose(1, 2)

        k, v = self.kv_cache.update(start_pos, k, v)

        mask = None
        if seqlen > 1:
            mask = self.causal_mask[None, None, start_pos:start_pos + seqlen]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)

        y = y.transpose(1, 2).contiguous().view(bsz, seqlen, self.dim)
        return self.wo(y)
