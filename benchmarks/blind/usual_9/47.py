from typing import Optional

import torch
from torch import nn


class FlatAttention(nn.Module):
    def __init__(
        self,
        embed_dim: int = 128,
        num_attention_heads: int = 4,
        attention_dropout: float = 0.0,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = embed_dim // num_attention_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(attention_dropout)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.num_attention_heads, self.attention_head_size)).transpose(1, 2)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Args:
            hidden_states: (batch, seq_len, embed_dim)
            attention_mask: (batch, seq_len), bool or integer, true for the positions that hold a token
        """
        query, key, value = (self._heads(t) for t in self.in_proj(hidden_states).chunk(3, dim=-1))
        scores = torch.matmul(query, key.mT) / self.attention_head_size ** 0.5

        if attention_mask is not None:
            blocked = attention_mask.to(torch.bool).logical_not_()
            scores = scores.masked_fill(blocked[:, None, None, :], torch.finfo(scores.dtype).min)

        probs = self.dropout(scores.softmax(dim=-1))
        context = torch.matmul(probs, value).transpose(1, 2).flatten(-2)
        return self.out_proj(context)
