from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn


@dataclass
class SinkAttentionConfig:
    hidden_size: int = 64
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    attention_bias: bool = True


class SinkAttention(nn.Module):
    """Causal grouped-query attention with one learned sink logit per head.

    The sink takes part in the softmax like one more key, but it has no value: its column is thrown
    away after normalisation. The weights over the real tokens therefore sum to less than one, and a
    head can choose to attend to nothing.
    """

    def __init__(self, config: Optional[SinkAttentionConfig] = None):
        super().__init__()
        config = config or SinkAttentionConfig()
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.groups = self.num_heads // self.num_kv_heads
        self.head_dim = config.hidden_size // self.num_heads
        self.scaling = self.head_dim ** -0.5

        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, self.num_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, self.num_kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=bias)
        self.sinks = nn.Parameter(torch.zeros(self.num_heads))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        bsz, seq_len, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, seq_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, seq_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k = k.repeat_interleave(self.groups, dim=1)
        v = v.repeat_interleave(self.groups, dim=1)

        logits = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        future = torch.ones(seq_len, seq_len, dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(future, float("-inf"))

        sinks = self.sinks.view(1, -1, 1, 1).expand(bsz, -1, seq_len, 1).to(logits.dtype)
        combined = torch.cat([logits, sinks], dim=-1)
        probs = torch.softmax(combined.float(), dim=-1).to(v.dtype)
        probs = probs[..., :-1]

        out = torch.matmul(probs, v).transpose(1, 2).reshape(bsz, seq_len, -1)
        return self.o_proj(out)
