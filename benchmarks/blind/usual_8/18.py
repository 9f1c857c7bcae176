import math

import torch
from torch import nn


def get_slopes(n):
    """Slopes of the ALiBi paper, also for head counts that are no power of two."""

    def power_of_2(m):
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start * start ** i for i in range(m)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


def build_alibi_tensor(attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """
    The bias is slope * key_position and not slope * (key_position - query_position). Both give
    the same weights, since a softmax does not change when a constant is added to a row.

    Returns (batch, num_heads, 1, seq_length).
    """
    slopes = torch.tensor(get_slopes(num_heads), device=attention_mask.device, dtype=torch.float32)
    position = ((attention_mask.long().cumsum(dim=-1) - 1) * attention_mask.long())[:, None, :]
    alibi = slopes[None, :, None] * position
    return alibi[:, :, None, :].to(dtype)


class BloomAttention(nn.Module):
    def __init__(self, hidden_size=96, n_head=6, attention_dropout=0.0):
        super().__init__()
        self.num_heads = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size, bias=True)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(attention_dropout)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, seq), 1 = token, 0 = padding"""
        bsz, seq, hidden = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.ones(bsz, seq, dtype=torch.long, device=hidden_states.device)

        # the fused projection is laid out head by head: (heads, 3, head_dim)
        fused = self.query_key_value(hidden_states).view(bsz, seq, self.num_heads, 3, self.head_dim)
        q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]

        alibi = build_alibi_tensor(attention_mask, self.num_heads, hidden_states.dtype)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * self.inv_norm_factor + alibi

        future = torch.ones(seq, seq, dtype=torch.bool, device=scores.device).triu(1)
        hidden_keys = future[None, None] | (attention_mask == 0)[:, None, None, :]
        scores = scores.masked_fill(hidden_keys, torch.finfo(scores.dtype).min)

        probs = self.attention_dropout(torch.softmax(scores.float(), dim=-1).to(v.dtype))
        context = torch.einsum("bhqk,bkhd->bqhd", probs, v).reshape(bsz, seq, hidden)
        return self.dense(context)
