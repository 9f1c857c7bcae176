from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class SdpaEncoderAttention(nn.Module):
    """
    Bidirectional attention over a padded batch.

    Args:
        hidden_states (`torch.FloatTensor` of shape `(batch, seq_len, hidden_size)`)
        attention_mask (`torch.Tensor` of shape `(batch, seq_len)`, *optional*):
            1 for tokens that are **not masked**, 0 for padding, as returned by the tokenizer.
    """

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def _shape(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(tensor.shape[0], -1, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None):
        bsz, seq_len, hidden = hidden_states.shape
        query_states = self._shape(self.q_proj(hidden_states))
        key_states = self._shape(self.k_proj(hidden_states))
        value_states = self._shape(self.v_proj(hidden_states))

        sdpa_mask = None
        if attention_mask is not None and not bool(attention_mask.bool().all()):
            sdpa_mask = attention_mask[:, None, None, :].eq(0)
            sdpa_mask = sdpa_mask.expand(bsz, 1, seq_len, seq_len)

        attn_output = F.scaled_dot_product_attention(
            query_states,
            key_states,
            value_states,
            attn_mask=sdpa_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        attn_output = attn_output.transpose(1, 2).reshape(bsz, seq_len, hidden)
        return self.out_proj(attn_output)
