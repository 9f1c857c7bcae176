import math
from typing import Optional

import torch
from torch import nn


class RobertaSelfAttention(nn.Module):
    """
    Self- or cross-attention without the output projection, which lives in RobertaSelfOutput.

    Args:
        hidden_states: (batch, q_len, hidden_size)
        attention_mask: additive, broadcastable to (batch, heads, q_len, k_len); 0 keeps a position
            and a large negative number removes it
        head_mask: broadcastable to (batch, heads, 1, 1); 1 keeps a head and 0 switches it off
        encoder_hidden_states: keys and values come from here if given
        encoder_attention_mask: takes the place of attention_mask for cross-attention
    """

    def __init__(self, hidden_size=64, num_attention_heads=4, attention_probs_dropout_prob=0.1):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError(
                f"The hidden size ({hidden_size}) is not a multiple of the number of attention "
                f"heads ({num_attention_heads})"
            )
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.all_head_size = hidden_size

        self.query = nn.Linear(hidden_size, self.all_head_size)
        self.key = nn.Linear(hidden_size, self.all_head_size)
        self.value = nn.Linear(hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        new_x_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(new_x_shape).permute(0, 2, 1, 3)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        head_mask: Optional[torch.Tensor] = None,
        encoder_hidden_states: Optional[torch.Tensor] = None,
        encoder_attention_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        if encoder_hidden_states is not None:
            source = encoder_hidden_states
            attention_mask = encoder_attention_mask
        else:
            source = hidden_states
        key_layer = self.transpose_for_scores(self.key(source))
        value_layer = self.transpose_for_scores(self.value(source))

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask

        attention_probs = nn.functional.softmax(attention_scores, dim=-1)

        # This is actually dropping out entire tokens to attend to, which might
        # seem a bit unusual, but is taken from the original Transformer paper.
        attention_probs = self.dropout(attention_probs)

        if head_mask is not None:
            attention_probs = attention_probs * head_mask

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(context_layer.size()[:-2] + (self.all_head_size,))

        return (context_layer, attention_probs) if output_attentions else (context_layer,)
