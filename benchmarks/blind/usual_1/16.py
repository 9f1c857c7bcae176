import math
from typing import Optional

import torch
from torch import nn


def build_alibi_tensor(attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """
    The bias depends on the position of the key only: softmax is invariant to translation, so
    slope * j and slope * (j - i) give the same weights in every row.

    Returns a tensor of shape (batch_size * num_heads, 1, seq_length).
    """
    batch_size, seq_length = attention_mask.shape
    closest_power_of_2 = 2 ** math.floor(math.log2(num_heads))
    base = torch.tensor(
        2 ** (-(2 ** -(math.log2(closest_power_of_2) - 3))), device=attention_mask.device, dtype=torch.float32
    )
    powers = torch.arange(1, 1 + closest_power_of_2, device=attention_mask.device, dtype=torch.int32)
    slopes = torch.pow(base, powers)

    if closest_power_of_2 != num_heads:
        extra_base = torch.tensor(
            2 ** (-(2 ** -(math.log2(2 * closest_power_of_2) - 3))), device=attention_mask.device, dtype=torch.float32
        )
        num_remaining_heads = min(closest_power_of_2, num_heads - closest_power_of_2)
        extra_powers = torch.arange(1, 1 + 2 * num_remaining_heads, 2, device=attention_mask.device, dtype=torch.int32)
        slopes = torch.cat([slopes, torch.pow(extra_base, extra_powers)], dim=0)

    arange_tensor = ((attention_mask.cumsum(dim=-1) - 1) * attention_mask)[:, None, :]
    alibi = slopes[..., None] * arange_tensor
    return alibi.reshape(batch_size * num_heads, 1, seq_length).to(dtype)


class BloomAttention(nn.Module):
    def __init__(self, hidden_size: int = 96, n_head: int = 6, attention_dropout: float = 0.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_heads = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size, bias=True)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(attention_dropout)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """attention_mask: (batch, seq), 1 for tokens and 0 for padding (either side)."""
        batch_size, q_length, _ = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.ones(batch_size, q_length, dtype=torch.long, device=hidden_states.device)
        attention_mask = attention_mask.long()

        # the fused projection is laid out as [head, (q, k, v), head_dim]
        fused_qkv = self.query_key_value(hidden_states)
        fused_qkv = fused_qkv.view(batch_size, q_length, self.num_heads, 3, self.head_dim)
        query, key, value = fused_qkv[..., 0, :], fused_qkv[..., 1, :], fused_qkv[..., 2, :]
        query = query.transpose(1, 2).reshape(batch_size * self.num_heads, q_length, self.head_dim)
        key = key.permute(0, 2, 3, 1).reshape(batch_size * self.num_heads, self.head_dim, q_length)
        value = value.transpose(1, 2).reshape(batch_size * self.num_heads, q_length, self.head_dim)

        alibi = build_alibi_tensor(attention_mask, self.num_heads, hidden_states.dtype)
        scores = torch.baddbmm(alibi, query, key, beta=1.0, alpha=self.inv_norm_factor)
        scores = scores.view(batch_size, self.num_heads, q_length, q_length)

        blocked = torch.ones(q_length, q_length, dtype=torch.bool, device=scores.device).triu(1)[None, None]
        blocked = blocked | (attention_mask[:, None, None, :] == 0)
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        probs = self.attention_dropout(torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype))

        context = torch.bmm(probs.view(batch_size * self.num_heads, q_length, q_length), value)
        context = context.view(batch_size, self.num_heads, q_length, self.head_dim)
        context = context.transpose(1, 2).reshape(batch_size, q_length, self.hidden_size)
        return self.dense(context)
