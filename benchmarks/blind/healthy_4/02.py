from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    """(batch, kv_heads, seq, dim) -> (batch, kv_heads * n_rep, seq, dim), each kv head repeated in place."""
    batch, kv_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None].expand(batch, kv_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, kv_heads * n_rep, slen, head_dim)


class SinkAttention(nn.Module):
    """Causal grouped-query attention with one learned sink logit per head.

    The sink takes part in the softmax normalisation but carries no value, so a head can
    choose to attend to (almost) nothing. With ``sliding_window`` set, a query sees itself
    and the ``sliding_window - 1`` tokens before it.

    ``attention_mask``: optional (batch, seq) tensor, 1 for tokens and 0 for padding.
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 2,
        sliding_window: Optional[int] = None,
        rope_theta: float = 150000.0,
        attention_dropout: float = 0.0,
    ):
        super().__init__()
        assert num_attention_heads % num_key_value_heads == 0
        self.head_dim = hidden_size // num_attention_heads
        self.num_heads = num_attention_heads
        self.num_kv_heads = num_key_value_heads
        self.n_rep = num_attention_heads // num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.sliding_window = sliding_window
        self.attention_dropout = attention_dropout

        self.q_proj = nn.Linear(hidden_size, self.num_heads * self.head_dim, bias=True)
        self.k_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, bias=True)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, bias=True)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, hidden_size, bias=True)
        self.sinks = nn.Parameter(torch.zeros(self.num_heads))

        inv_freq = 1.0 / (rope_theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        freqs = position_ids[:, None, :, None].float() * self.inv_freq
        cos, sin = freqs.cos().to(x.dtype), freqs.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        bsz, seq, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, seq, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, seq, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, seq, self.num_kv_heads, self.head_dim).transpose(1, 2)

        if position_ids is None:
            position_ids = torch.arange(seq, device=hidden_states.device)[None]
        q, k = self._rope(q, position_ids), self._rope(k, position_ids)
        k, v = repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep)

        scores = torch.matmul(q, k.transpose(2, 3)) * self.scaling

        idx = torch.arange(seq, device=hidden_states.device)
        distance = idx[:, None] - idx[None, :]
        allowed = distance >= 0
        if self.sliding_window is not None:
            allowed = allowed & (distance < self.sliding_window)
        allowed = allowed[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, None, :]
        scores = scores.masked_fill(~allowed, float("-inf"))

        # the sink column is never masked, so every row has a finite maximum
        sinks = self.sinks.view(1, -1, 1, 1).expand(bsz, -1, seq, 1).to(scores.dtype)
        combined = torch.cat([scores, sinks], dim=-1)
        probs = F.softmax(combined, dim=-1, dtype=torch.float32)[..., :-1].to(v.dtype)
        probs = F.dropout(probs, p=self.attention_dropout, training=self.training)

        out = torch.matmul(probs, v).transpose(1, 2).reshape(bsz, seq, -1)
        return self.o_proj(out)
