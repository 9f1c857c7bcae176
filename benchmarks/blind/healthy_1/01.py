import math
from typing import Optional, Tuple

import torch
from torch import nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class RotaryEmbedding(nn.Module):
    def __init__(self, dim: int, base: float = 10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq[None, None, :].float()
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


class LlamaStyleAttention(nn.Module):
    """Grouped-query causal self-attention with rotary embeddings and a tuple KV cache.

    Args of ``forward``:
        hidden_states: ``(batch, q_len, hidden_size)``.
        attention_mask: optional ``(batch, past_len + q_len)``, 1 for real tokens and 0 for padding.
        position_ids: optional ``(batch, q_len)``. Derived from the mask (or from the cache length)
            when omitted, so that left-padded prompts start at position 0.
        past_key_value: ``(key, value)`` of shape ``(batch, kv_heads, past_len, head_dim)``; keys are
            stored already rotated.
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_heads: int = 8,
        num_key_value_heads: int = 2,
        rope_theta: float = 10000.0,
        attention_dropout: float = 0.0,
    ):
        super().__init__()
        if hidden_size % num_heads or num_heads % num_key_value_heads:
            raise ValueError("hidden_size / num_heads / num_key_value_heads do not divide")
        self.num_heads = num_heads
        self.num_kv = num_key_value_heads
        self.groups = num_heads // num_key_value_heads
        self.head_dim = hidden_size // num_heads
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.num_kv * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.num_kv * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim, rope_theta)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        bsz, q_len, _ = hidden_states.shape
        past_len = 0 if past_key_value is None else past_key_value[0].shape[2]
        device = hidden_states.device

        if position_ids is None:
            if attention_mask is not None:
                position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -q_len:]
            else:
                position_ids = torch.arange(past_len, past_len + q_len, device=device).unsqueeze(0)

        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, self.num_kv, self.head_dim).transpose(1, 2)
        cos, sin = self.rotary_emb(v, position_ids)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)

        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        present = (k, v) if use_cache else None

        # grouped form: fold the group axis next to the kv-head axis instead of repeating k / v
        q = q.reshape(bsz, self.num_kv, self.groups, q_len, self.head_dim)
        scores = torch.einsum("bhgqd,bhkd->bhgqk", q, k) / math.sqrt(self.head_dim)

        q_idx = torch.arange(past_len, past_len + q_len, device=device)[:, None]
        k_idx = torch.arange(k.shape[2], device=device)[None, :]
        allowed = (k_idx <= q_idx)[None]
        if attention_mask is not None:
            # the diagonal stays open so that padded query rows never become empty
            allowed = (allowed & attention_mask.bool()[:, None, :]) | (k_idx == q_idx)
        scores = scores.masked_fill(~allowed[:, None, None], float("-inf"))

        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
        probs = F.dropout(probs, p=self.attention_dropout, training=self.training)
        out = torch.einsum("bhgqk,bhkd->bqhgd", probs, v)
        out = self.o_proj(out.reshape(bsz, q_len, self.num_heads * self.head_dim))
        return out, present
