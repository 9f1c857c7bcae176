from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

KVCache = Tuple[torch.Tensor, torch.Tensor]


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class GroupedQueryAttention(nn.Module):
    """Causal GQA with RoPE, computed by SDPA.

    ``scale`` may be given for checkpoints trained with another query multiplier
    (Gemma style); by default it is 1/sqrt(head_dim).
    """

    def __init__(
        self,
        dim: int = 128,
        num_heads: int = 8,
        num_kv_heads: int = 2,
        rope_base: float = 10000.0,
        scale: Optional[float] = None,
    ):
        super().__init__()
        assert dim % num_heads == 0 and num_heads % num_kv_heads == 0
        self.nq, self.nkv = num_heads, num_kv_heads
        self.hd = dim // num_heads
        self.scale = scale
        self.q_proj = nn.Linear(dim, self.nq * self.hd, bias=False)
        self.k_proj = nn.Linear(dim, self.nkv * self.hd, bias=False)
        self.v_proj = nn.Linear(dim, self.nkv * self.hd, bias=False)
        self.o_proj = nn.Linear(self.nq * self.hd, dim, bias=False)
        inv = rope_base ** (-torch.arange(0, self.hd, 2, dtype=torch.float32) / self.hd)
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, x: torch.Tensor, cache: Optional[KVCache] = None) -> Tuple[torch.Tensor, KVCache]:
        b, t, _ = x.shape
        past = 0 if cache is None else cache[0].size(2)

        q = self.q_proj(x).view(b, t, self.nq, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.nkv, self.hd).transpose(1, 2)

        angles = torch.outer(torch.arange(past, past + t, device=x.device).float(), self.inv_freq)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)

        if cache is not None:
            k = torch.cat((cache[0], k), dim=2)
            v = torch.cat((cache[1], v), dim=2)

        mask = None
        if past > 0 and t > 1:
            # is_causal aligns to the top left corner, so a chunk that follows a cache needs its own mask
            mask = torch.ones(t, past + t, dtype=torch.bool, device=x.device).tril(diagonal=past)

        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=mask,
            is_causal=(past == 0 and t > 1),
            scale=self.scale,
            enable_gqa=True,
        )
        y = y.transpose(1, 2).reshape(b, t, self.nq * self.hd)
        return self.o_proj(y), (k, v)
