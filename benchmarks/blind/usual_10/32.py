from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

Cache = Tuple[torch.Tensor, torch.Tensor]


class SdpaAttention(nn.Module):
    """Decoder self-attention with SDPA.

    Args:
        hidden_states: (batch, q_len, hidden_size), the new tokens only if a cache is given
        past_key_value: keys and values of all earlier tokens, (batch, heads, past_len, head_dim)
        use_cache: return the extended cache

    With a cache the result for the new tokens equals that of a full forward pass.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, attention_dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_value: Optional[Cache] = None,
        use_cache: bool = False,
    ) -> Tuple[torch.Tensor, Optional[Cache]]:
        query = self._split(self.q_proj(hidden_states))
        key = self._split(self.k_proj(hidden_states))
        value = self._split(self.v_proj(hidden_states))

        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        present = (key, value) if use_cache else None

        attn_output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=True,
        )
        attn_output = attn_output.transpose(1, 2).flatten(2)
        return self.out_proj(attn_output), present
