from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, start, end, dtype):
        t = torch.arange(start, end, device=self.inv_freq.device).float()
        freqs = torch.outer(t, self.inv_freq.float())
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype), emb.sin().to(dtype)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rope(x, cos, sin):
    return x * cos + rotate_half(x) * sin


class GroupedQueryAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int = 64,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 2,
        rope_theta: float = 10000.0,
    ):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_kv_heads = num_key_value_heads
        self.groups = num_attention_heads // num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        self.q_proj = nn.Linear(hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim, rope_theta)

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        bsz, q_len, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)

        past_len = 0
        if past_key_value is not None:
            past_len = past_key_value[0].shape[2]
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        kv_len = past_len + q_len

        cos, sin = self.rotary_emb(0, kv_len, hidden_states.dtype)
        q = apply_rope(q, cos[past_len:], sin[past_len:])
        k = apply_rope(k, cos, sin)
        present = (k, v) if use_cache else None

        keys = k.repeat_interleave(self.groups, dim=1)
        values = v.repeat_interleave(self.groups, dim=1)
        causal = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(past_len)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=causal)
        out = out.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), present
