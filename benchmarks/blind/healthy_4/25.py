from typing import Optional, Tuple

import torch
import torch.nn as nn


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    return torch.repeat_interleave(hidden_states, repeats=n_rep, dim=1)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class Gemma2Attention(nn.Module):
    """Gemma-2 attention: logits softly capped by ``cap * tanh(logits / cap)``, queries scaled by
    ``query_pre_attn_scalar ** -0.5`` (not necessarily the head size), and every even layer local.

    The cap is applied before the mask.

    Args of forward:
        hidden_states: (batch, seq, hidden)
        attention_mask: (batch, past + seq), 1 = token, 0 = padding
        past_key_value: (key, value) of the preceding tokens
    """

    def __init__(
        self,
        layer_idx: int = 0,
        hidden_size: int = 256,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 4,
        head_dim: int = 32,
        query_pre_attn_scalar: float = 32.0,
        attn_logit_softcapping: Optional[float] = 50.0,
        sliding_window: int = 16,
        rope_theta: float = 10000.0,
        attention_dropout: float = 0.0,
    ):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_kv_heads = num_key_value_heads
        self.n_rep = num_attention_heads // num_key_value_heads
        self.head_dim = head_dim
        self.scaling = query_pre_attn_scalar**-0.5
        self.softcap = attn_logit_softcapping
        self.sliding_window = sliding_window if layer_idx % 2 == 0 else None
        self.attention_dropout = attention_dropout

        self.q_proj = nn.Linear(hidden_size, num_attention_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_attention_heads * head_dim, hidden_size, bias=False)
        inv_freq = 1.0 / (rope_theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _shape(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        bsz, q_len, _ = hidden_states.shape
        past = 0 if past_key_value is None else past_key_value[0].shape[2]

        query = self._shape(self.q_proj(hidden_states), self.num_heads)
        key = self._shape(self.k_proj(hidden_states), self.num_kv_heads)
        value = self._shape(self.v_proj(hidden_states), self.num_kv_heads)

        q_pos = torch.arange(past, past + q_len, device=hidden_states.device)
        emb = torch.outer(q_pos.float(), self.inv_freq).repeat(1, 2)
        cos, sin = emb.cos().to(query.dtype), emb.sin().to(query.dtype)
        query = query * cos + rotate_half(query) * sin
        key = key * cos + rotate_half(key) * sin

        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        present = (key, value)

        attn_weights = torch.matmul(query, repeat_kv(key, self.n_rep).transpose(2, 3)) * self.scaling
        if self.softcap is not None:
            attn_weights = torch.tanh(attn_weights / self.softcap) * self.softcap

        k_pos = torch.arange(past + q_len, device=hidden_states.device)
        dist = q_pos[:, None] - k_pos[None, :]
        allowed = dist >= 0
        if self.sliding_window is not None:
            allowed = allowed & (dist < self.sliding_window)
        allowed = allowed[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None, :].bool()
        attn_weights = attn_weights.masked_fill(~allowed, torch.finfo(attn_weights.dtype).min)

        attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
        attn_weights = nn.functional.dropout(attn_weights, p=self.attention_dropout, training=self.training)
        attn_output = torch.matmul(attn_weights, repeat_kv(value, self.n_rep))
        attn_output = attn_output.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(attn_output), present
