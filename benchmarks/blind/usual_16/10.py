from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoderAttention(nn.Module):
    """Causal self attention with an optional key/value cache for generation.

    Args:
        hidden_states: (batch, new_tokens, embed_dim)
        past_key_value: tuple of (batch, heads, past_tokens, head_dim) tensors returned by the
            previous call, or None.
        attention_mask: optional boolean mask, True where a key may be attended,
            broadcastable to (batch, heads, new_tokens, past_tokens + new_tokens).
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _shape(self, tensor, bsz, seq_len):
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        attention_mask: Optional[torch.Tensor] = None,
        use_cache: bool = False,
    ):
        bsz, tgt_len, _ = hidden_states.size()
        query = self._shape(self.q_proj(hidden_states), bsz, tgt_len)
        key = self._shape(self.k_proj(hidden_states), bsz, tgt_len)
        value = self._shape(self.v_proj(hidden_states), bsz, tgt_len)

        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        present = (key, value) if use_cache else None

        attn_output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=attention_mask is None,
        )
        attn_output = attn_output.transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        return self.out_proj(attn_output), present
