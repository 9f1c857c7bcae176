import math
from typing import Optional

import torch
from torch import nn


class DistilSelfAttention(nn.Module):
    """
    Args:
        hidden_states (`torch.FloatTensor` of shape `(batch_size, seq_len, hidden_size)`)
        attention_mask (`torch.Tensor` of shape `(batch_size, seq_len)`, *optional*):
            1 for tokens that are **not masked**, 0 for padding tokens.
        head_mask (`torch.Tensor` of shape `(num_heads,)`, *optional*):
            1 keeps a head, 0 nullifies it.
    """

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, attention_dropout: float = 0.1):
        super().__init__()
        self.n_heads = num_attention_heads
        self.dim_per_head = hidden_size // num_attention_heads
        self.q_lin = nn.Linear(hidden_size, hidden_size)
        self.k_lin = nn.Linear(hidden_size, hidden_size)
        self.v_lin = nn.Linear(hidden_size, hidden_size)
        self.out_lin = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attention_dropout)

    def get_extended_attention_mask(self, attention_mask, dtype):
        extended = attention_mask[:, None, :, None].to(dtype=dtype)
        return (1.0 - extended) * -10000.0

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        head_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ):
        bs, seq_len, dim = hidden_states.size()

        def shape(x):
            return x.view(bs, -1, self.n_heads, self.dim_per_head).transpose(1, 2)

        q = shape(self.q_lin(hidden_states)) / math.sqrt(self.dim_per_head)
        k = shape(self.k_lin(hidden_states))
        v = shape(self.v_lin(hidden_states))
        scores = torch.matmul(q, k.transpose(2, 3))
        if attention_mask is not None:
            scores = scores + self.get_extended_attention_mask(attention_mask, scores.dtype)

        weights = self.dropout(nn.functional.softmax(scores, dim=-1))
        if head_mask is not None:
            weights = weights * head_mask.view(1, -1, 1, 1)

        context = torch.matmul(weights, v).transpose(1, 2).contiguous().view(bs, seq_len, dim)
        context = self.out_lin(context)
        return (context, weights) if output_attentions else (context,)
