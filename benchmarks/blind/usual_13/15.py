from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 64
    n_heads: int = 4
    max_batch_size: int = 8
    max_seq_len: int = 64


class CachedAttention(nn.Module):
    """Inference attention with a preallocated key/value cache.

    ``start_pos`` is the absolute position of the first token of ``x``.
    """

    def __init__(self, args: ModelArgs = ModelArgs()):
        super().__init__()
        self.n_heads = args.n_heads
        self.head_dim = args.dim // args.n_heads
        self.max_seq_len = args.max_seq_len
        self.wq = nn.Linear(args.dim, args.dim, bias=False)
        self.wk = nn.Linear(args.dim, args.dim, bias=False)
        self.wv = nn.Linear(args.dim, args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)
        shape = (args.max_batch_size, args.max_seq_len, args.n_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    @torch.no_grad()
    def forward(self, x: torch.Tensor, start_pos: int = 0):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_heads, self.head_dim)

        self.cache_k[:bsz, start_pos:start_pos + seqlen] = xk
        self.cache_v[:bsz, start_pos:start_pos + seqlen] = xv
        keys = self.cache_k[:bsz]
        values = self.cache_v[:bsz]

        mask = None
        if seqlen > 1:
            q_pos = start_pos + torch.arange(seqlen, device=x.device)
            k_pos = torch.arange(self.max_seq_len, device=x.device)
            mask = k_pos[None, :] <= q_pos[:, None]

        out = F.scaled_dot_product_attention(
            xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask
        )
        return self.wo(out.transpose(1, 2).reshape(bsz, seqlen, -1))
