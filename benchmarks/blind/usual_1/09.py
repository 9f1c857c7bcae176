from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

KVCache = Tuple[torch.Tensor, torch.Tensor]


class CachedCausalAttention(nn.Module):
    """Causal self-attention for decoding with a growing key/value cache.

    ``x`` holds the new tokens only. It may be the whole prompt, a piece of it (chunked prefill),
    a single token (generation) or several draft tokens (speculative decoding).
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, num_kv_heads: Optional[int] = None,
                 attn_dropout: float = 0.0):
        super().__init__()
        num_kv_heads = num_kv_heads or num_heads
        assert embed_dim % num_heads == 0 and num_heads % num_kv_heads == 0
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.attn_dropout = attn_dropout
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.output_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias=False)

    def forward(
        self, x: torch.Tensor, past_key_value: Optional[KVCache] = None, use_cache: bool = True
    ) -> Tuple[torch.Tensor, Optional[KVCache]]:
        bsz, q_len, _ = x.shape
        q = self.q_proj(x).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)

        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        present = (k, v) if use_cache else None

        if self.num_kv_heads != self.num_heads:
            n_rep = self.num_heads // self.num_kv_heads
            k = k.repeat_interleave(n_rep, dim=1)
            v = v.repeat_interleave(n_rep, dim=1)

        # a single query sees every cached key, the flag is only needed for longer inputs
        is_causal = q_len > 1
        out = F.scaled_dot_product_attention(
            q, k, v,
            dropout_p=self.attn_dropout if self.training else 0.0,
            is_causal=is_causal,
        )
        out = out.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.output_proj(out), present
