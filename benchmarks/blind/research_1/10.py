from typing import Optional

import torch
from torch import nn


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


class SinkAttention(nn.Module):
    """Causal attention with one learned sink logit per head and an optional sliding window.

    The sink takes part in the softmax as an additional column without a value vector, so the
    probabilities over real tokens may add up to less than one.
    """

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 8, num_key_value_heads: int = 2,
                 head_dim: int = 8, sliding_window: Optional[int] = None, attention_dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_kv_heads = num_key_value_heads
        self.num_key_value_groups = num_attention_heads // num_key_value_heads
        self.head_dim = head_dim
        self.scaling = head_dim ** -0.5
        self.sliding_window = sliding_window
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, num_attention_heads * head_dim)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * head_dim)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * head_dim)
        self.o_proj = nn.Linear(num_attention_heads * head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(num_attention_heads))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        bsz, seq_len, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, seq_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, seq_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k = repeat_kv(k, self.num_key_value_groups)
        v = repeat_kv(v, self.num_key_value_groups)

        attn_weights = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        pos = torch.arange(seq_len, device=q.device)
        distance = pos[:, None] - pos[None, :]
        hidden = distance < 0
        if self.sliding_window is not None:
            hidden = hidden | (distance >= self.sliding_window)
        attn_weights = attn_weights.masked_fill(hidden, float("-inf"))

        sinks = self.sinks.reshape(1, -1, 1, 1).expand(bsz, -1, seq_len, 1)
        combined = torch.cat([attn_weights, sinks.to(attn_weights.dtype)], dim=-1)
        combined = combined - combined.max(dim=-1, keepdim=True).values
        probs = nn.functional.softmax(combined, dim=-1, dtype=torch.float32).to(q.dtype)
        scores = probs[..., :-1]
        scores = nn.functional.dropout(scores, p=self.attention_dropout, training=self.training)

        attn_output = torch.matmul(scores, v).transpose(1, 2).reshape(bsz, seq_len, -1)
        return self.o_proj(attn_output)
