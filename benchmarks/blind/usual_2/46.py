from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class ModelArgs:
    dim: int = 128
    n_heads: int = 8
    n_kv_heads: int = 2
    max_seq_len: int = 512
    rope_theta: float = 10000.0


def precompute_freqs_cis(dim: int, end: int, theta: float) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    angles = torch.outer(torch.arange(end).float(), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """x: (bsz, seqlen, heads, head_dim), freqs_cis: (seqlen, head_dim // 2) complex."""
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis[None, :, None, :]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Grouped-query attention without copies of the key/value heads.

    Query head h belongs to key/value head h // n_rep; the queries of a group are laid out
    next to each other and contracted with their key/value head.
    """

    def __init__(self, args: ModelArgs = ModelArgs()):
        super().__init__()
        assert args.n_heads % args.n_kv_heads == 0
        self.n_kv_heads = args.n_kv_heads
        self.n_rep = args.n_heads // args.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        self.register_buffer(
            "freqs_cis",
            precompute_freqs_cis(self.head_dim, args.max_seq_len, args.rope_theta),
            persistent=False,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        freqs_cis = self.freqs_cis[:seqlen]
        xq = apply_rotary_emb(self.wq(x).view(bsz, seqlen, -1, self.head_dim), freqs_cis)
        xk = apply_rotary_emb(self.wk(x).view(bsz, seqlen, -1, self.head_dim), freqs_cis)
        xv = self.wv(x).view(bsz, seqlen, -1, self.head_dim)

        xq = xq.view(bsz, seqlen, self.n_kv_heads, self.n_rep, self.head_dim)
        scores = torch.einsum("bqgrd,bkgd->bgrqk", xq, xk) * self.head_dim ** -0.5
        mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device).triu(1)
        scores = torch.softmax(scores.float() + mask, dim=-1).type_as(xq)
        output = torch.einsum("bgrqk,bkgd->bqgrd", scores, xv)
        return self.wo(output.reshape(bsz, seqlen, -1))
