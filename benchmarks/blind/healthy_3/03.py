"""Llama-style grouped-query attention with rotary embeddings and a preallocated KV cache."""
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 256
    n_heads: int = 8
    n_kv_heads: Optional[int] = 2
    max_batch_size: int = 4
    max_seq_len: int = 128
    rope_theta: float = 10000.0


def precompute_freqs_cis(head_dim: int, end: int, theta: float) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
    angles = torch.outer(torch.arange(end).float(), freqs)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def apply_rotary_emb(
    xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """xq, xk: (bsz, seqlen, heads, head_dim); freqs_cis: (seqlen, head_dim / 2, 2) holding cos and sin."""
    freqs_cis = torch.view_as_complex(freqs_cis.float().contiguous())[None, :, None, :]
    q_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    k_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    q_out = torch.view_as_real(q_ * freqs_cis).flatten(3)
    k_out = torch.view_as_real(k_ * freqs_cis).flatten(3)
    return q_out.type_as(xq), k_out.type_as(xk)


def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    """(bsz, heads_kv, len, hd) -> (bsz, heads_kv * n_rep, len, hd)"""
    if n_rep == 1:
        return x
    return x.repeat_interleave(n_rep, dim=1)


class Attention(nn.Module):
    """With ``use_cache`` the new keys are written at ``start_pos`` and everything before is attended.

    The cache is for generation: no gradient flows into the cached keys and values.
    """

    def __init__(self, args: ModelArgs = ModelArgs()):
        super().__init__()
        self.n_heads = args.n_heads
        self.n_kv_heads = args.n_heads if args.n_kv_heads is None else args.n_kv_heads
        assert self.n_heads % self.n_kv_heads == 0
        self.n_rep = self.n_heads // self.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.max_seq_len = args.max_seq_len

        self.wq = nn.Linear(args.dim, self.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(self.n_heads * self.head_dim, args.dim, bias=False)

        cache_shape = (args.max_batch_size, args.max_seq_len, self.n_kv_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(cache_shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(cache_shape), persistent=False)
        self.register_buffer(
            "freqs_cis",
            precompute_freqs_cis(self.head_dim, args.max_seq_len, args.rope_theta),
            persistent=False,
        )

    def forward(self, x: torch.Tensor, start_pos: int = 0, use_cache: bool = False) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        end = start_pos + seqlen
        assert end <= self.max_seq_len, "sequence does not fit the rotary table / cache"
        if not use_cache:
            assert start_pos == 0, "start_pos needs use_cache=True"

        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, self.freqs_cis[start_pos:end])

        if use_cache:
            self.cache_k[:bsz, start_pos:end] = xk.detach()
            self.cache_v[:bsz, start_pos:end] = xv.detach()
            xk = self.cache_k[:bsz, :end].to(xq.dtype)
            xv = self.cache_v[:bsz, :end].to(xq.dtype)

        q = xq.transpose(1, 2)
        k = repeat_kv(xk.transpose(1, 2), self.n_rep)
        v = repeat_kv(xv.transpose(1, 2), self.n_rep)

        # row i of the chunk sits at absolute position start_pos + i
        q_pos = torch.arange(start_pos, end, device=x.device)
        k_pos = torch.arange(end, device=x.device)
        mask = k_pos[None, :] <= q_pos[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(out)
