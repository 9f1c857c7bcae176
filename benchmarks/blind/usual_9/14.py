from typing import Optional

import torch
from torch import nn


class SinkAttention(nn.Module):
    """Causal grouped-query attention with learned attention sinks.

    Each head owns one scalar logit that takes part in the softmax as if it were one more key, with a value of
    zero. Its column is dropped afterwards, so the weights of a row may sum to less than one: a head can choose
    to attend to nothing. ``sliding_window`` counts the query's own position.
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 2,
        sliding_window: Optional[int] = None,
    ):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_kv_heads = num_key_value_heads
        self.groups = num_attention_heads // num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        self.scaling = self.head_dim ** -0.5
        self.sliding_window = sliding_window

        self.q_proj = nn.Linear(hidden_size, self.num_heads * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(self.num_heads))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        bsz, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, n, self.num_kv_heads, self.groups, self.head_dim)
        k = self.k_proj(hidden_states).view(bsz, n, self.num_kv_heads, self.head_dim)
        v = self.v_proj(hidden_states).view(bsz, n, self.num_kv_heads, self.head_dim)

        logits = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.scaling

        distance = torch.arange(n, device=q.device)[:, None] - torch.arange(n, device=q.device)[None, :]
        blocked = distance < 0
        if self.sliding_window is not None:
            blocked = blocked | (distance >= self.sliding_window)
        logits = logits.masked_fill(blocked, float("-inf"))

        sinks = self.sinks.view(1, self.num_kv_heads, self.groups, 1, 1).expand(bsz, -1, -1, n, 1)
        combined = torch.cat([logits, sinks.to(logits.dtype)], dim=-1)
        combined = combined - combined.amax(dim=-1, keepdim=True)
        probs = torch.softmax(combined, dim=-1)
        probs = probs[..., :-1]

        out = torch.einsum("bhgqk,bkhd->bqhgd", probs, v)
        return self.o_proj(out.reshape(bsz, n, self.num_heads * self.head_dim))
