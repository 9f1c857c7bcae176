from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class MistralSdpaAttention(nn.Module):
    """
    Causal grouped-query attention on top of SDPA.

    hidden_states: (batch, q_len, hidden_size), the new tokens
    attention_mask: optional bool (batch, 1, q_len, kv_len), True where attention is allowed; leave it out
        when the batch has no padding, then the causal structure is handled in here
    past_key_values: (key, value) of the earlier tokens, each (batch, kv_heads, past_len, head_dim)
    """

    def __init__(self, hidden_size=64, num_heads=8, num_key_value_heads=2, attention_dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = hidden_size // num_heads
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_values: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = True,
    ):
        bsz, q_len, _ = hidden_states.size()
        query_states = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(bsz, q_len, self.num_key_value_heads, -1).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(bsz, q_len, self.num_key_value_heads, -1).transpose(1, 2)

        if past_key_values is not None:
            key_states = torch.cat([past_key_values[0], key_states], dim=2)
            value_states = torch.cat([past_key_values[1], value_states], dim=2)
        present = (key_states, value_states) if use_cache else None

        attn_output = F.scaled_dot_product_attention(
            query_states,
            key_states,
            value_states,
            attn_mask=attention_mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=attention_mask is None,
            enable_gqa=self.num_heads != self.num_key_value_heads,
        )
        attn_output = attn_output.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(attn_output), present
