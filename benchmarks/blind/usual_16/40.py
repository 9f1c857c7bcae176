import torch
import torch.nn as nn
import torch.nn.functional as F


class KVCacheAttention(nn.Module):
    """Multi-query causal attention with preallocated key/value buffers.

    Call with ``start_pos=0`` and the prompt first, then token by token with ``start_pos`` set
    to the number of tokens seen so far.
    """

    def __init__(self, dim=64, n_heads=4, max_batch_size=8, max_seq_len=64):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, self.head_dim, bias=False)
        self.wv = nn.Linear(dim, self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("cache_k", torch.zeros(max_batch_size, max_seq_len, self.head_dim), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch_size, max_seq_len, self.head_dim), persistent=False)

    @torch.no_grad()
    def _store(self, k, v, start_pos):
        bsz, seqlen, _ = k.shape
        self.cache_k[:bsz, start_pos:start_pos + seqlen] = k
        self.cache_v[:bsz, start_pos:start_pos + seqlen] = v

    def forward(self, x, start_pos=0):
        bsz, seqlen, dim = x.shape
        q = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        k, v = self.wk(x), self.wv(x)
        self._store(k, v, start_pos)

        if start_pos == 0:
            k = k.unsqueeze(1).expand(-1, self.n_heads, -1, -1)
            v = v.unsqueeze(1).expand(-1, self.n_heads, -1, -1)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            assert seqlen == 1, "decoding is one token at a time"
            k = self.cache_k[:bsz].unsqueeze(1).expand(-1, self.n_heads, -1, -1)
            v = self.cache_v[:bsz].unsqueeze(1).expand(-1, self.n_heads, -1, -1)
            out = F.scaled_dot_product_attention(q, k, v)
        return self.wo(out.transpose(1, 2).reshape(bsz, seqlen, dim))
