import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def get_slopes(n_head: int) -> torch.Tensor:
    closest = 2 ** math.floor(math.log2(n_head))
    base = 2.0 ** (-(2.0 ** -(math.log2(closest) - 3)))
    slopes = [base ** i for i in range(1, closest + 1)]
    if closest != n_head:
        extra_base = 2.0 ** (-(2.0 ** -(math.log2(2 * closest) - 3)))
        n_extra = min(closest, n_head - closest)
        slopes += [extra_base ** i for i in range(1, 1 + 2 * n_extra, 2)]
    return torch.tensor(slopes, dtype=torch.float32)


class BloomStyleAttention(nn.Module):
    """Causal self-attention with ALiBi, batched as (batch * heads) matrices for ``baddbmm``."""

    def __init__(self, hidden_size: int = 128, n_head: int = 8, attention_dropout: float = 0.0):
        super().__init__()
        if hidden_size % n_head != 0:
            raise ValueError("hidden_size must be divisible by n_head")
        self.hidden_size = hidden_size
        self.num_heads = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.register_buffer("slopes", get_slopes(n_head), persistent=False)

    def build_alibi_tensor(self, attention_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Key-position bias of shape (batch * heads, 1, seq_len). Row-wise softmax is shift
        invariant, so the absolute key position is enough."""
        batch, seq_len = attention_mask.shape
        positions = (attention_mask.cumsum(dim=-1) - 1) * attention_mask
        alibi = self.slopes[:, None, None] * positions[None, :, :]
        return alibi.reshape(batch * self.num_heads, 1, seq_len).to(dtype)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None):
        """
        hidden_states: (batch, seq, hidden)
        attention_mask: (batch, seq), 1 for tokens and 0 for padding
        """
        bsz, seq, _ = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.ones(bsz, seq, dtype=torch.long, device=hidden_states.device)
        attention_mask = attention_mask.long()
        alibi = self.build_alibi_tensor(attention_mask, hidden_states.dtype)

        fused = self.query_key_value(hidden_states).view(bsz, seq, self.num_heads, 3, self.head_dim)
        q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]
        q = q.transpose(1, 2).reshape(bsz * self.num_heads, seq, self.head_dim)
        k = k.permute(0, 2, 3, 1).reshape(bsz * self.num_heads, self.head_dim, seq)
        v = v.transpose(1, 2).reshape(bsz * self.num_heads, seq, self.head_dim)

        scores = torch.baddbmm(alibi, q, k, beta=1.0, alpha=self.inv_norm_factor)
        scores = scores.view(bsz, self.num_heads, seq, seq)

        causal = torch.ones(seq, seq, dtype=torch.bool, device=scores.device).triu(1)
        blocked = causal[None, None] | (attention_mask == 0)[:, None, None, :]
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)

        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(hidden_states.dtype)
        probs = self.attention_dropout(probs)
        context = torch.bmm(probs.view(bsz * self.num_heads, seq, seq), v)
        context = context.view(bsz, self.num_heads, seq, self.head_dim)
        context = context.transpose(1, 2).reshape(bsz, seq, self.hidden_size)
        return self.dense(context)
