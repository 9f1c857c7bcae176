import math
from typing import Optional, Tuple

import torch
from torch import nn


def alibi_slopes(num_heads: int) -> torch.Tensor:
    closest = 2 ** math.floor(math.log2(num_heads))
    base = 2.0 ** (-(2.0 ** -(math.log2(closest) - 3)))
    slopes = base ** torch.arange(1, closest + 1, dtype=torch.float32)
    if closest != num_heads:
        extra = 2.0 ** (-(2.0 ** -(math.log2(2 * closest) - 3)))
        n = min(closest, num_heads - closest)
        slopes = torch.cat([slopes, extra ** torch.arange(1, 1 + 2 * n, 2, dtype=torch.float32)])
    return slopes


def build_alibi_tensor(attention_mask: torch.Tensor, slopes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """
    (batch, heads, 1, keys).  The query position is left out on purpose: softmax is invariant to a shift that
    is constant along a row, so slope * j and slope * (j - i) give the same distribution.
    """
    positions = (attention_mask.cumsum(dim=-1) - 1) * attention_mask
    alibi = slopes[None, :, None, None] * positions[:, None, None, :]
    return alibi.to(dtype)


class BloomStyleAttention(nn.Module):
    def __init__(self, hidden_size: int = 64, n_head: int = 4, attention_dropout: float = 0.0):
        super().__init__()
        if hidden_size % n_head:
            raise ValueError("hidden_size must be divisible by n_head")
        self.n_head = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm = 1.0 / math.sqrt(self.head_dim)
        # weights are laid out per head as (head, 3, head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.register_buffer("slopes", alibi_slopes(n_head), persistent=False)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """attention_mask: (batch, seq), 1 for tokens and 0 for padding."""
        bsz, seq, _ = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.ones(bsz, seq, dtype=torch.long, device=hidden_states.device)
        attention_mask = attention_mask.long()

        fused = self.query_key_value(hidden_states).view(bsz, seq, self.n_head, 3, self.head_dim)
        q, k, v = (t.transpose(1, 2) for t in fused.unbind(dim=3))

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.inv_norm
        scores = scores + build_alibi_tensor(attention_mask, self.slopes, scores.dtype)

        future = torch.ones(seq, seq, dtype=torch.bool, device=scores.device).triu(1)
        blocked = future[None, None] | (attention_mask[:, None, None, :] == 0)
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)

        probs = torch.softmax(scores.float(), dim=-1).to(scores.dtype)
        context = torch.matmul(self.attention_dropout(probs), v)
        context = context.transpose(1, 2).reshape(bsz, seq, -1)
        return self.dense(context), probs
