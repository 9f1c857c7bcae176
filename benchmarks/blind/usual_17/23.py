import torch
import torch.nn as nn
import torch.nn.functional as F


class StaticCacheAttention(nn.Module):
    """Decoder attention with preallocated key/value buffers (static shapes for torch.compile).

    Call with the whole prompt first, then one token at a time. ``reset_cache`` starts a new sequence.
    """

    def __init__(self, dim=64, n_heads=4, max_batch_size=4, max_seq_len=128):
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
        self.pos = 0

    def reset_cache(self):
        self.cache_k.zero_()
        self.cache_v.zero_()
        self.pos = 0

    @torch.no_grad()
    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        xk = self.wk(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        xv = self.wv(x).view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)

        start = self.pos
        self.cache_k[:bsz, :, start:start + seqlen] = xk
        self.cache_v[:bsz, :, start:start + seqlen] = xv
        self.pos = start + seqlen

        if start == 0:
            out = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        else:
            assert seqlen == 1, "only single-token steps after the prompt"
            keys = self.cache_k[:bsz]
            values = self.cache_v[:bsz]
            out = F.scaled_dot_product_attention(xq, keys, values)
        out = out.transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(out)
