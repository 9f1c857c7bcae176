from typing import Optional

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import functional as F


class KVCache(nn.Module):
    """Fixed-size buffer of keys and values; slot s holds the token of position s. Inference only."""

    def __init__(self, max_batch_size, n_heads, max_seq_length, head_dim, dtype=torch.float32, device=None):
        super().__init__()
        shape = (max_batch_size, n_heads, max_seq_length, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape, dtype=dtype, device=device), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape, dtype=dtype, device=device), persistent=False)

    def update(self, input_pos: Tensor, k_val: Tensor, v_val: Tensor):
        # input_pos: [S], k_val: [B, H, S, D]
        bsz = k_val.shape[0]
        k_out, v_out = self.k_cache[:bsz], self.v_cache[:bsz]
        k_out[:, :, input_pos] = k_val.detach().to(k_out.dtype)
        v_out[:, :, input_pos] = v_val.detach().to(v_out.dtype)
        return k_out.to(k_val.dtype), v_out.to(v_val.dtype)


def precompute_freqs_cis(seq_len: int, n_elem: int, base: float = 10000) -> Tensor:
    freqs = 1.0 / (base ** (torch.arange(0, n_elem, 2).float() / n_elem))
    freqs = torch.outer(torch.arange(seq_len).float(), freqs)
    return torch.stack([freqs.cos(), freqs.sin()], dim=-1)


def apply_rotary_emb(x: Tensor, freqs_cis: Tensor) -> Tensor:
    xshaped = x.float().reshape(*x.shape[:-1], -1, 2)
    freqs_cis = freqs_cis.view(1, xshaped.size(1), 1, xshaped.size(3), 2)
    x_out = torch.stack(
        [
            xshaped[..., 0] * freqs_cis[..., 0] - xshaped[..., 1] * freqs_cis[..., 1],
            xshaped[..., 1] * freqs_cis[..., 0] + xshaped[..., 0] * freqs_cis[..., 1],
        ],
        -1,
    )
    return x_out.flatten(3).type_as(x)


class CachedAttention(nn.Module):
    """Llama-style causal attention in the manner of gpt-fast.

    Call ``setup_cache`` before decoding and pass ``input_pos`` (the positions of the given tokens);
    without ``input_pos`` the layer is plain causal attention over the given sequence.
    """

    def __init__(self, dim: int = 256, n_head: int = 8, n_local_heads: int = 4, block_size: int = 256,
                 rope_base: float = 10000):
        super().__init__()
        assert dim % n_head == 0 and n_head % n_local_heads == 0
        self.n_head = n_head
        self.n_local_heads = n_local_heads
        self.head_dim = dim // n_head
        self.block_size = block_size
        self.wqkv = nn.Linear(dim, (n_head + 2 * n_local_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(n_head * self.head_dim, dim, bias=False)
        self.kv_cache: Optional[KVCache] = None
        self.register_buffer("freqs_cis", precompute_freqs_cis(block_size, self.head_dim, rope_base), persistent=False)
        causal = torch.tril(torch.ones(block_size, block_size, dtype=torch.bool))
        self.register_buffer("causal_mask", causal, persistent=False)

    def setup_cache(self, max_batch_size: int):
        w = self.wqkv.weight
        self.kv_cache = KVCache(
            max_batch_size, self.n_local_heads, self.block_size, self.head_dim, dtype=w.dtype, device=w.device
        )

    def forward(self, x: Tensor, input_pos: Optional[Tensor] = None) -> Tensor:
        bsz, seqlen, _ = x.shape
        kv_size = self.n_local_heads * self.head_dim
        q, k, v = self.wqkv(x).split([self.n_head * self.head_dim, kv_size, kv_size], dim=-1)
        q = q.view(bsz, seqlen, self.n_head, self.head_dim)
        k = k.view(bsz, seqlen, self.n_local_heads, self.head_dim)
        v = v.view(bsz, seqlen, self.n_local_heads, self.head_dim)

        freqs_cis = self.freqs_cis[:seqlen] if input_pos is None else self.freqs_cis[input_pos]
        q, k = apply_rotary_emb(q, freqs_cis), apply_rotary_emb(k, freqs_cis)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))

        if input_pos is None:
            mask = self.causal_mask[:seqlen, :seqlen]
        else:
            assert self.kv_cache is not None, "call setup_cache first"
            k, v = self.kv_cache.update(input_pos, k, v)
            # slots after the query's position (not written yet, or stale) are hidden by the causal mask
            mask = self.causal_mask[input_pos]

        n_rep = self.n_head // self.n_local_heads
        k = k.repeat_interleave(n_rep, dim=1)
        v = v.repeat_interleave(n_rep, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None], dropout_p=0.0)
        y = y.transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(y)
