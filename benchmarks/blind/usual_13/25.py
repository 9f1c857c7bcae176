from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderAttention(nn.Module):
    """Encoder self-attention for a tokenizer that returns ``attention_mask`` with 1 for tokens
    and 0 for padding."""

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def _split(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        q = self._split(self.q_proj(hidden_states))
        k = self._split(self.k_proj(hidden_states))
        v = self._split(self.v_proj(hidden_states))

        if attention_mask is not None:
            # (B, S) -> (B, 1, 1, S), the kernel wants the dtype of the query
            attention_mask = attention_mask[:, None, None, :].to(dtype=q.dtype)

        out = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=attention_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out_proj(out.transpose(1, 2).flatten(-2))
