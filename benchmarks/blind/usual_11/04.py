from typing import Optional

import torch
import torch.nn as nn


class EncoderLayer(nn.Module):
    """
    Post-norm encoder layer that takes the tokenizer's ``attention_mask`` directly.

    Args:
        hidden_size: model width
        num_heads: number of attention heads
        intermediate_size: width of the feed-forward layer
        dropout: dropout probability

    Inputs:
        hidden_states: (batch, seq_len, hidden_size)
        attention_mask: (batch, seq_len) as returned by the tokenizer, 1 for tokens and 0 for [PAD]
    """

    def __init__(self, hidden_size=64, num_heads=4, intermediate_size=128, dropout=0.1):
        super().__init__()
        self.attention = nn.MultiheadAttention(hidden_size, num_heads, dropout=dropout, batch_first=True)
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        self.output_norm = nn.LayerNorm(hidden_size)
        self.act = nn.GELU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None):
        key_padding_mask = None
        if attention_mask is not None:
            key_padding_mask = attention_mask.to(torch.bool)

        attn_output, _ = self.attention(
            hidden_states,
            hidden_states,
            hidden_states,
            key_padding_mask=key_padding_mask,
            need_weights=False,
        )
        hidden_states = self.attention_norm(hidden_states + self.dropout(attn_output))

        ff = self.output(self.act(self.intermediate(hidden_states)))
        return self.output_norm(hidden_states + self.dropout(ff))
