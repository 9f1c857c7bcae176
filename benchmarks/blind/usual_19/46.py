import math
from typing import Optional

import torch
import torch.nn as nn


class EncoderSelfAttention(nn.Module):
    """
    Encoder self-attention block with residual and LayerNorm.

    Args to forward:
        hidden_states: (batch_size, seq_len, hidden_size)
        attention_mask: (batch_size, seq_len) as returned by the tokenizer:
            1 for tokens to attend to, 0 for padding tokens
    """

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, dropout: float = 0.1):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.attn_dropout = nn.Dropout(dropout)
        self.out_dropout = nn.Dropout(dropout)

    def _split(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None):
        q = self._split(self.query(hidden_states))
        k = self._split(self.key(hidden_states))
        v = self._split(self.value(hidden_states))

        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_size)
        if attention_mask is not None:
            extended_mask = attention_mask.unsqueeze(1).unsqueeze(2).to(scores.dtype)
            scores = scores + extended_mask

        probs = self.attn_dropout(nn.functional.softmax(scores, dim=-1))
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)
        return self.LayerNorm(hidden_states + self.out_dropout(self.dense(context)))
