import math

import torch
from torch import nn


class SinkAttention(nn.Module):
    """Causal grouped attention with one learned sink logit per head.

    The sink takes part in the normalisation and has no value, so a head can put
    (part of) its mass nowhere. The weights over the tokens therefore add up to less than one.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 8, num_kv_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.sm_scale = 1.0 / math.sqrt(self.head_dim)

    def forward(self, hidden_states):
        bsz, n, _ = hidden_states.shape
        groups = self.num_heads // self.num_kv_heads
        q = self.q_proj(hidden_states).view(bsz, n, self.num_kv_heads, groups, self.head_dim)
        k = self.k_proj(hidden_states).view(bsz, n, self.num_kv_heads, self.head_dim)
        v = self.v_proj(hidden_states).view(bsz, n, self.num_kv_heads, self.head_dim)

        logits = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.sm_scale
        causal = torch.triu(logits.new_full((n, n), float("-inf")), diagonal=1)
        logits = logits + causal

        sink = self.sinks.view(1, self.num_kv_heads, groups, 1, 1).expand(bsz, -1, -1, n, 1)
        logits = torch.cat([logits, sink.to(logits.dtype)], dim=-1)
        probs = torch.softmax(logits.float(), dim=-1).to(v.dtype)[..., :-1]

        out = torch.einsum("bhgqk,bkhd->bqhgd", probs, v)
        return self.o_proj(out.reshape(bsz, n, -1))
