from typing import Optional, Tuple

import torch
from torch import nn


class DecoderSelfAttention(nn.Module):
    """
    Causal self-attention with an optional key/value cache.

    Args to `forward`:
        hidden_states: `(batch, q_len, hidden_size)`
        attention_mask: *additive* float mask `(batch, 1, 1, kv_len)`; 0 for tokens, a very negative
            number for padding. `kv_len` counts the cached tokens too.
        past_key_value: keys and values of the tokens that came before
    """

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, attention_dropout: float = 0.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.scaling = self.head_dim ** -0.5
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def _shape(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(tensor.size(0), -1, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ):
        bsz, q_len, _ = hidden_states.size()

        query_states = self._shape(self.q_proj(hidden_states) * self.scaling)
        key_states = self._shape(self.k_proj(hidden_states))
        value_states = self._shape(self.v_proj(hidden_states))

        if past_key_value is not None:
            key_states = torch.cat([past_key_value[0], key_states], dim=2)
            value_states = torch.cat([past_key_value[1], value_states], dim=2)
        present = (key_states, value_states) if use_cache else None
        kv_len = key_states.size(2)

        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3))

        visible = torch.ones(q_len, kv_len, dtype=torch.bool, device=hidden_states.device)
        visible = visible.tril(diagonal=kv_len - q_len)
        attn_weights = torch.where(visible, attn_weights, torch.finfo(attn_weights.dtype).min)

        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask

        attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)
        attn_probs = nn.functional.dropout(attn_weights, p=self.attention_dropout, training=self.training)

        attn_output = torch.matmul(attn_probs, value_states)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, q_len, self.hidden_size)
        attn_output = self.out_proj(attn_output)

        return attn_output, (attn_weights if output_attentions else None), present
