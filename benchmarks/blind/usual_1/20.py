from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class SdpaSelfAttention(nn.Module):
    """Bidirectional self-attention on `torch.nn.functional.scaled_dot_product_attention`."""

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, attention_dropout: float = 0.0):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError("hidden_size must be a multiple of num_attention_heads")
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def _shape(self, tensor: torch.Tensor) -> torch.Tensor:
        bsz, seq_len, _ = tensor.shape
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Args:
            hidden_states: `(batch, seq_len, hidden_size)`
            attention_mask: `(batch, seq_len)` as returned by the tokenizer, 1 for real tokens and 0 for padding
        """
        bsz, seq_len, embed_dim = hidden_states.shape
        query_states = self._shape(self.q_proj(hidden_states))
        key_states = self._shape(self.k_proj(hidden_states))
        value_states = self._shape(self.v_proj(hidden_states))

        if attention_mask is not None:
            # SDPA wants the mask in the dtype of the query, broadcastable to (bsz, heads, q_len, k_len)
            attention_mask = attention_mask[:, None, None, :].to(dtype=query_states.dtype)
            attention_mask = attention_mask.expand(bsz, 1, seq_len, seq_len)

        attn_output = F.scaled_dot_product_attention(
            query_states,
            key_states,
            value_states,
            attn_mask=attention_mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        attn_output = attn_output.transpose(1, 2).reshape(bsz, seq_len, embed_dim)
        return self.out_proj(attn_output)
