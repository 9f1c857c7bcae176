from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class StaticCache:
    """Preallocated buffers ``(batch, kv_heads, max_len, head_dim)``, fixed addresses for CUDA graphs."""

    key: torch.Tensor
    value: torch.Tensor

    def update(self, k: torch.Tensor, v: torch.Tensor, cache_position: torch.Tensor):
        self.key.index_copy_(2, cache_position, k)
        self.value.index_copy_(2, cache_position, v)
        return self.key, self.value


class Qwen2StyleAttention(nn.Module):
    """Causal GQA attention: biases on q / k / v but not on o, rotary embeddings, static cache.

    With a cache the keys always have the full buffer length; slots behind ``cache_position`` have not been
    written and are masked like any other future position. ``is_causal=True`` of SDPA is only used without
    cache and without padding, where queries and keys are aligned.
    """

    def __init__(
        self,
        hidden_size: int = 128,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 2,
        rope_theta: float = 1000000.0,
        attention_dropout: float = 0.0,
    ):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_kv_heads = num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, self.num_heads * self.head_dim, bias=True)
        self.k_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, bias=True)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, bias=True)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, hidden_size, bias=False)
        inv_freq = 1.0 / (rope_theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def allocate_cache(self, batch_size: int, max_len: int) -> StaticCache:
        weight = self.k_proj.weight
        shape = (batch_size, self.num_kv_heads, max_len, self.head_dim)
        return StaticCache(weight.new_zeros(shape), weight.new_zeros(shape))

    def _rope(self, x, position_ids):
        angle = position_ids[:, None, :, None].float() * self.inv_freq
        cos = torch.cat([angle.cos()] * 2, dim=-1).to(x.dtype)
        sin = torch.cat([angle.sin()] * 2, dim=-1).to(x.dtype)
        x1, x2 = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-x2, x1), dim=-1) * sin

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
        cache: Optional[StaticCache] = None,
        cache_position: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        attention_mask: (batch, key length), 1 for tokens and 0 for padding; with a cache the key length is
            the buffer length, entries of slots still to come are not looked at.
        position_ids: (batch, q_len), ``cache_position`` if omitted.
        cache_position: (q_len,) consecutive slots of the new tokens, required with a cache.
        """
        b, q_len, _ = hidden_states.shape
        if cache_position is None:
            assert cache is None, "cache_position is required with a cache"
            cache_position = torch.arange(q_len, device=hidden_states.device)
        if position_ids is None:
            position_ids = cache_position[None]

        q = self.q_proj(hidden_states).view(b, q_len, -1, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, q_len, -1, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, q_len, -1, self.head_dim).transpose(1, 2)
        q, k = self._rope(q, position_ids), self._rope(k, position_ids)
        if cache is not None:
            with torch.no_grad():
                k, v = cache.update(k, v, cache_position)

        mask = None
        if cache is not None or attention_mask is not None:
            slots = torch.arange(k.shape[2], device=q.device)
            mask = (slots[None, :] <= cache_position[:, None])[None, None]
            if attention_mask is not None:
                own = slots[None, :] == cache_position[:, None]
                mask = (mask & attention_mask[:, None, None, :].bool()) | own

        rep = self.num_heads // self.num_kv_heads
        out = F.scaled_dot_product_attention(
            q,
            k.repeat_interleave(rep, dim=1),
            v.repeat_interleave(rep, dim=1),
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=mask is None,
        )
        return self.o_proj(out.transpose(1, 2).reshape(b, q_len, -1))
