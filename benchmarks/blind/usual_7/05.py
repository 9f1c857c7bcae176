import math
from typing import Optional, Tuple

import torch
from torch import nn


class ElectraSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, attention_probs_dropout_prob):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        new_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(new_shape).permute(0, 2, 1, 3)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        head_mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask

        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        attention_probs = self.dropout(attention_probs)
        if head_mask is not None:
            attention_probs = attention_probs * head_mask

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(context_layer.size()[:-2] + (-1,))
        return context_layer, attention_probs


class ElectraAttention(nn.Module):
    """
    Self-attention with its output projection.

    Args:
        hidden_states: (batch_size, seq_len, hidden_size)
        attention_mask: (batch_size, seq_len). 1 for tokens that are attended to, 0 for padding.
        head_mask: (num_heads,) or (1, num_heads, 1, 1). 1 keeps a head.
        output_attentions: also return the attention probabilities.
    """

    def __init__(self, hidden_size=64, num_attention_heads=4, dropout=0.1, layer_norm_eps=1e-12):
        super().__init__()
        self.self = ElectraSelfAttention(hidden_size, num_attention_heads, dropout)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = nn.Dropout(dropout)

    def get_extended_attention_mask(self, attention_mask, dtype):
        extended = attention_mask[:, None, None, :]
        return extended.to(dtype=dtype)

    def forward(self, hidden_states, attention_mask=None, head_mask=None, output_attentions=False):
        if attention_mask is not None:
            attention_mask = self.get_extended_attention_mask(attention_mask, hidden_states.dtype)
        if head_mask is not None and head_mask.dim() == 1:
            head_mask = head_mask[None, :, None, None]
        context, probs = self.self(hidden_states, attention_mask, head_mask)
        attention_output = self.LayerNorm(self.dropout(self.dense(context)) + hidden_states)
        return (attention_output, probs) if output_attentions else (attention_output,)
