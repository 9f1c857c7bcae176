from typing import Optional, Tuple

import torch
from torch import nn


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class GPTNeoXAttention(nn.Module):
    """GPT-NeoX attention: fused qkv laid out per head, rotary on the first ``rotary_pct`` of each head.

    Args of forward:
        hidden_states: (batch, seq, hidden)
        attention_mask: (batch, past + seq), 1 for tokens and 0 for padding, or None
        position_ids: (batch, seq), or None for consecutive positions after the cache
        layer_past: (key, value), each (batch, heads, past, head_size)
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_attention_heads: int = 8,
        rotary_pct: float = 0.25,
        rotary_emb_base: float = 10000,
        attention_dropout: float = 0.0,
    ):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError("The hidden size is not divisible by the number of attention heads")
        self.num_attention_heads = num_attention_heads
        self.hidden_size = hidden_size
        self.head_size = hidden_size // num_attention_heads
        self.rotary_ndims = int(self.head_size * rotary_pct)
        inv_freq = 1.0 / (rotary_emb_base ** (torch.arange(0, self.rotary_ndims, 2).float() / self.rotary_ndims))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.norm_factor = self.head_size**-0.5
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(attention_dropout)

    def _apply_rotary(self, x, cos, sin):
        rot, passed = x[..., : self.rotary_ndims], x[..., self.rotary_ndims :]
        rot = rot * cos + rotate_half(rot) * sin
        return torch.cat((rot, passed), dim=-1)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        bsz, seq, _ = hidden_states.shape
        past = layer_past[0].shape[-2] if layer_past is not None else 0

        # [batch, seq, (heads * 3 * head_size)] -> [batch, heads, seq, 3 * head_size]
        qkv = self.query_key_value(hidden_states)
        qkv = qkv.view(bsz, seq, self.num_attention_heads, 3 * self.head_size).transpose(1, 2)
        query, key, value = qkv.chunk(3, dim=-1)

        if position_ids is None:
            position_ids = torch.arange(past, past + seq, device=hidden_states.device).unsqueeze(0)
        freqs = position_ids[..., None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1).unsqueeze(1)
        cos, sin = emb.cos().to(query.dtype), emb.sin().to(query.dtype)
        query, key = self._apply_rotary(query, cos, sin), self._apply_rotary(key, cos, sin)

        if layer_past is not None:
            key = torch.cat((layer_past[0], key), dim=-2)
            value = torch.cat((layer_past[1], value), dim=-2)
        present = (key, value) if use_cache else None

        scores = torch.matmul(query, key.transpose(-1, -2)) * self.norm_factor
        allowed = torch.ones(seq, past + seq, dtype=torch.bool, device=scores.device).tril(diagonal=past)
        allowed = allowed[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None, :].bool()
        scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min)

        attn_weights = nn.functional.softmax(scores, dim=-1).to(value.dtype)
        attn_weights = self.attention_dropout(attn_weights)
        attn_output = torch.matmul(attn_weights, value)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, seq, self.hidden_size)
        return self.dense(attn_output), present
