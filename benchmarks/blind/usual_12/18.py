import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    """Decoder attention with preallocated key/value buffers.

    The prompt is given in one call with ``start_pos=0``; generation then feeds one token at a
    time with ``start_pos`` equal to the number of tokens already seen.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, max_batch_size: int = 8, max_seq_len: int = 64):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        shape = (max_batch_size, num_heads, max_seq_len, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    @torch.no_grad()
    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        q = self.wq(x).view(bsz, seqlen, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(bsz, seqlen, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(bsz, seqlen, self.num_heads, self.head_dim).transpose(1, 2)

        end_pos = start_pos + seqlen
        self.cache_k[:bsz, :, start_pos:end_pos] = k
        self.cache_v[:bsz, :, start_pos:end_pos] = v

        if seqlen > 1:
            keys = self.cache_k[:bsz, :, :end_pos]
            values = self.cache_v[:bsz, :, :end_pos]
            mask = torch.ones(seqlen, end_pos, dtype=torch.bool, device=x.device).tril(start_pos)
        else:
            keys, values = self.cache_k[:bsz], self.cache_v[:bsz]
            mask = None

        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.wo(out.transpose(1, 2).reshape(bsz, seqlen, -1))
