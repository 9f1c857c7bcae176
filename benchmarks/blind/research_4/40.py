from typing import Optional

import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Causal attention with a learned sink per head.

    Each head owns one extra logit which takes part in the softmax without having a value, so a head can put its
    mass nowhere.

    Args:
        hidden_size: model width.
        num_attention_heads: query heads.
        num_key_value_heads: key/value heads.
        sliding_window: if given, number of positions that a query sees, itself included.
    """

    def __init__(
        self,
        hidden_size: int = 128,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 2,
        sliding_window: Optional[int] = None,
    ):
        super().__init__()
        self.n_q = num_attention_heads
        self.n_kv = num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, self.n_q * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, self.n_kv * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, self.n_kv * self.head_dim)
        self.o_proj = nn.Linear(self.n_q * self.head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(self.n_q))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        g = self.n_q // self.n_kv
        q = self.q_proj(x).view(b, t, self.n_kv, g, self.head_dim)
        k = self.k_proj(x).view(b, t, self.n_kv, self.head_dim)
        v = self.v_proj(x).view(b, t, self.n_kv, self.head_dim)

        qk = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.head_dim**-0.5
        hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        if self.sliding_window is not None:
            hidden = hidden | torch.ones_like(hidden).tril(-self.sliding_window)
        qk = qk.masked_fill(hidden, float("-inf"))

        sinks = self.sinks.view(1, self.n_kv, g, 1, 1).expand(b, -1, -1, t, -1)
        weights = torch.cat([qk, sinks], dim=-1).softmax(dim=-1)
        weights = weights[..., 1:]

        y = torch.einsum("bhgqk,bkhd->bqhgd", weights, v)
        return self.o_proj(y.reshape(b, t, -1))
