from typing import Optional

import torch
from torch import nn


class TextEncoderLayer(nn.Module):
    """Pre-norm encoder layer for tokenised text.

    Takes the tokenizer's ``attention_mask`` unchanged: (batch, length), 1 for tokens and 0 for padding.
    """

    def __init__(self, hidden_size: int = 128, num_heads: int = 4, intermediate_size: int = 512, dropout: float = 0.1):
        super().__init__()
        self.ln_attn = nn.LayerNorm(hidden_size)
        self.attn = nn.MultiheadAttention(hidden_size, num_heads, dropout=dropout, batch_first=True)
        self.ln_mlp = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, intermediate_size),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(intermediate_size, hidden_size),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        key_padding_mask = attention_mask.bool() if attention_mask is not None else None

        h = self.ln_attn(hidden_states)
        h, _ = self.attn(h, h, h, key_padding_mask=key_padding_mask, need_weights=False)
        hidden_states = hidden_states + self.dropout(h)

        h = self.mlp(self.ln_mlp(hidden_states))
        return hidden_states + self.dropout(h)
