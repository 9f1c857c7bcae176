import math
from typing import Optional

import torch
import torch.nn as nn


class RobertaLikeSelfAttention(nn.Module):
    """Self-attention layer with the usual Hugging Face signature.

    Args:
        hidden_states: ``(batch_size, seq_len, hidden_size)``
        attention_mask: ``(batch_size, seq_len)`` as returned by the tokenizer,
            1 for tokens that are **not masked** and 0 for padding.
        head_mask: ``(num_heads,)``, 0 switches a head off.
        output_attentions: also return the attention probabilities.
    """

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4,
                 attention_probs_dropout_prob: float = 0.1):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError("hidden_size must be a multiple of num_attention_heads")
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.size(0), x.size(1), self.num_attention_heads, self.attention_head_size)
        return x.permute(0, 2, 1, 3)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        head_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_mask = attention_mask[:, None, None, :].to(attention_scores.dtype)
            attention_scores = attention_scores + attention_mask

        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        attention_probs = self.dropout(attention_probs)
        if head_mask is not None:
            attention_probs = attention_probs * head_mask.view(1, -1, 1, 1)

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(context_layer.size(0), context_layer.size(1), -1)
        return (context_layer, attention_probs) if output_attentions else (context_layer,)
