import math
from typing import Optional, Tuple

import torch
from torch import nn


class RobertaSelfAttention(nn.Module):
    """
    Self-attention.

    Args to `forward`:
        hidden_states (`torch.FloatTensor` of shape `(batch, seq, hidden)`)
        attention_mask: additive mask broadcastable to `(batch, heads, seq, seq)`
        head_mask (`torch.FloatTensor` of shape `(heads,)`): 1 keeps a head, 0 switches it off
        output_attentions: also return the attention probabilities
    """

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, dropout_prob: float = 0.0):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError(f"{hidden_size} is not a multiple of {num_attention_heads}")
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.all_head_size = hidden_size
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout_prob)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.size()[:-1] + (self.num_attention_heads, self.attention_head_size))
        return x.permute(0, 2, 1, 3)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        head_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ) -> Tuple[torch.Tensor, ...]:
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if head_mask is not None:
            attention_scores = attention_scores * head_mask.view(1, -1, 1, 1)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask

        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        attention_probs = self.dropout(attention_probs)

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(context_layer.size()[:-2] + (self.all_head_size,))

        return (context_layer, attention_probs) if output_attentions else (context_layer,)
