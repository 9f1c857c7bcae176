from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class SdpaSelfAttention(nn.Module):
    """Bidirectional self-attention on top of F.scaled_dot_product_attention.

    Args:
        hidden_size: model width.
        num_attention_heads: number of heads.
        attention_probs_dropout_prob: dropout on the attention probabilities.
    """

    def __init__(self, hidden_size: int = 128, num_attention_heads: int = 4,
                 attention_probs_dropout_prob: float = 0.1):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError(
                f"The hidden size ({hidden_size}) is not a multiple of the number of heads ({num_attention_heads})"
            )
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.dropout_prob = attention_probs_dropout_prob
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        new_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(new_shape).transpose(1, 2)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        hidden_states: (batch, seq_len, hidden_size)
        attention_mask: (batch, seq_len) from the tokenizer, 1 for tokens and 0 for padding
        """
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))

        if attention_mask is not None:
            # broadcast over heads and queries
            attention_mask = attention_mask[:, None, None, :].to(dtype=query_layer.dtype)

        context = F.scaled_dot_product_attention(
            query_layer,
            key_layer,
            value_layer,
            attn_mask=attention_mask,
            dropout_p=self.dropout_prob if self.training else 0.0,
        )
        context = context.transpose(1, 2).reshape(hidden_states.shape)
        return self.dense(context)
