from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 64
    n_heads: int = 4
    n_kv_heads: Optional[int] = 2
    rope_theta: float = 10000.0
    max_seq_len: int = 256


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end, dtype=torch.float32)
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor):
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis[None, :, None, :]).flatten(3).type_as(x)


KVCache = Tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Llama attention with a KV cache.

    The prompt may come in one call or, for long prompts, in several chunks; each call passes on the cache that the
    one before it returned. The result does not depend on how the tokens are divided into calls.
    """

    def __init__(self, args: Optional[ModelArgs] = None):
        super().__init__()
        args = args or ModelArgs()
        self.n_heads = args.n_heads
        self.n_kv_heads = args.n_heads if args.n_kv_heads is None else args.n_kv_heads
        self.n_rep = self.n_heads // self.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        self.register_buffer(
            "freqs_cis", precompute_freqs_cis(self.head_dim, args.max_seq_len, args.rope_theta), persistent=False)

    def forward(self, x: torch.Tensor, cache: Optional[KVCache] = None) -> Tuple[torch.Tensor, KVCache]:
        bsz, seqlen, _ = x.shape
        start_pos = 0 if cache is None else cache[0].shape[1]

        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        freqs_cis = self.freqs_cis[start_pos: start_pos + seqlen]
        xq, xk = apply_rotary_emb(xq, freqs_cis), apply_rotary_emb(xk, freqs_cis)

        if cache is not None:
            xk = torch.cat((cache[0], xk), dim=1)
            xv = torch.cat((cache[1], xv), dim=1)
        cache = (xk, xv)

        keys = xk.repeat_interleave(self.n_rep, dim=2).transpose(1, 2)
        values = xv.repeat_interleave(self.n_rep, dim=2).transpose(1, 2)
        output = F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, is_causal=seqlen > 1)
        output = output.transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(output), cache
