from typing import Optional, Tuple

import torch
from torch import nn


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class SinkAttention(nn.Module):
    """Grouped-query attention with rotary positions and one learned sink logit per head.

    The sink takes part in the softmax and has no value, so a head can attend to nothing:
    the returned weights of a row sum to less than one. ``attention_mask`` is additive,
    (batch, 1, query, key); without it the attention is causal.
    """

    def __init__(self, hidden_size: int = 256, num_attention_heads: int = 8, num_key_value_heads: int = 2,
                 rope_theta: float = 10000.0, attention_dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_kv_heads = num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        self.scaling = self.head_dim ** -0.5
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, self.num_heads * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(num_attention_heads))
        inv_freq = rope_theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ):
        bsz, q_len, _ = hidden_states.shape
        past = 0 if past_key_value is None else past_key_value[0].shape[2]
        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)

        position = torch.arange(past, past + q_len, device=hidden_states.device)
        freqs = torch.outer(position.float(), self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos().to(q.dtype), emb.sin().to(q.dtype)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin

        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        present = (k, v) if use_cache else None

        groups = self.num_heads // self.num_kv_heads
        keys = k.repeat_interleave(groups, dim=1)
        values = v.repeat_interleave(groups, dim=1)
        logits = torch.matmul(q, keys.transpose(2, 3)) * self.scaling
        if attention_mask is not None:
            logits = logits + attention_mask[:, :, :, : keys.shape[2]]
        else:
            key_position = torch.arange(past + q_len, device=logits.device)
            logits = logits.masked_fill(key_position[None, :] > position[:, None], float("-inf"))

        sinks = self.sinks.view(1, -1, 1, 1).expand(bsz, -1, q_len, 1)
        combined = torch.cat((logits, sinks.to(logits.dtype)), dim=-1)
        combined = combined - combined.max(dim=-1, keepdim=True).values
        weights = combined.softmax(dim=-1)[..., :-1]
        dropped = nn.functional.dropout(weights, p=self.attention_dropout, training=self.training)
        out = torch.matmul(dropped, values).transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), (weights if output_attentions else None), present
