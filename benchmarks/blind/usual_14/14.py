from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 64
    n_heads: int = 8
    n_kv_heads: int = 4
    max_batch_size: int = 4
    max_seq_len: int = 64
    rope_theta: float = 10000.0


def precompute_freqs_cis(dim: int, end: int, theta: float):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    freqs = torch.outer(torch.arange(end).float(), freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(x, freqs_cis):
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    x_ = x_ * freqs_cis[None, :, None, :]
    return torch.view_as_real(x_).flatten(3).type_as(x)


class Attention(nn.Module):
    """Inference attention with a preallocated cache.

    A prompt is processed in one call with start_pos = 0 and then one token or a few tokens per call.
    """

    def __init__(self, args: ModelArgs = ModelArgs()):
        super().__init__()
        self.args = args
        self.head_dim = args.dim // args.n_heads
        self.n_rep = args.n_heads // args.n_kv_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        shape = (args.max_batch_size, args.max_seq_len, args.n_kv_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)
        self.register_buffer(
            "freqs_cis", precompute_freqs_cis(self.head_dim, args.max_seq_len, args.rope_theta), persistent=False
        )

    @torch.no_grad()
    def forward(self, x: torch.Tensor, start_pos: int = 0):
        bsz, seqlen, _ = x.shape
        end = start_pos + seqlen
        xq = self.wq(x).view(bsz, seqlen, self.args.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.args.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.args.n_kv_heads, self.head_dim)
        freqs = self.freqs_cis[start_pos:end]
        xq, xk = apply_rotary_emb(xq, freqs), apply_rotary_emb(xk, freqs)

        self.cache_k[:bsz, start_pos:end] = xk
        self.cache_v[:bsz, start_pos:end] = xv

        # attend over the whole buffer; slots not written yet lie in the future and are masked
        keys = self.cache_k[:bsz].transpose(1, 2).repeat_interleave(self.n_rep, dim=1)
        values = self.cache_v[:bsz].transpose(1, 2).repeat_interleave(self.n_rep, dim=1)
        pos = torch.arange(start_pos, end, device=x.device)
        slots = torch.arange(self.args.max_seq_len, device=x.device)
        mask = slots[None, :] <= pos[:, None]
        out = F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, attn_mask=mask)
        return self.wo(out.transpose(1, 2).reshape(bsz, seqlen, -1))
