from typing import Optional, Tuple

import torch
from torch import nn


class DecoderAttention(nn.Module):
    """Self attention of a decoder-only language model."""

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, attention_dropout: float = 0.0,
                 bias: bool = True):
        super().__init__()
        self.embed_dim = hidden_size
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.scaling = self.head_dim ** -0.5
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.dropout = nn.Dropout(attention_dropout)

    def _shape(self, tensor: torch.Tensor, seq_len: int, bsz: int) -> torch.Tensor:
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        attention_mask: Optional[torch.Tensor] = None,
        layer_head_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
        use_cache: bool = True,
    ):
        """
        Args:
            hidden_states: (batch, seq_len, hidden_size)
            past_key_value: key and value states of all earlier positions
            attention_mask: (batch, past + seq_len), 1 for tokens and 0 for padding
            layer_head_mask: (num_heads,), 0 switches a head off
        """
        bsz, tgt_len, _ = hidden_states.size()

        query_states = self._shape(self.q_proj(hidden_states) * self.scaling, tgt_len, bsz)
        key_states = self._shape(self.k_proj(hidden_states), tgt_len, bsz)
        value_states = self._shape(self.v_proj(hidden_states), tgt_len, bsz)
        present_key_value = (key_states, value_states) if use_cache else None

        if past_key_value is not None:
            key_states = torch.cat([past_key_value[0], key_states], dim=2)
            value_states = torch.cat([past_key_value[1], value_states], dim=2)

        src_len = key_states.size(2)
        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3))

        min_value = torch.finfo(attn_weights.dtype).min
        causal = torch.ones(tgt_len, src_len, dtype=torch.bool, device=hidden_states.device)
        causal = causal.tril(diagonal=src_len - tgt_len)
        attn_weights = attn_weights.masked_fill(~causal, min_value)
        if attention_mask is not None:
            attn_weights = attn_weights.masked_fill(attention_mask[:, None, None, :] == 0, min_value)

        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_probs = self.dropout(attn_weights)
        if layer_head_mask is not None:
            attn_probs = attn_probs * layer_head_mask.view(1, -1, 1, 1)

        attn_output = torch.matmul(attn_probs, value_states)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        attn_output = self.out_proj(attn_output)

        return attn_output, attn_weights if output_attentions else None, present_key_value
