import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedQueryAttention(nn.Module):
    """Grouped-query attention with a fused path and an eager path.

    The fused kernel is used by default. It cannot return probabilities, so
    ``output_attentions=True`` switches to the eager implementation of the same layer.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 8, num_kv_heads: int = 2,
                 attention_dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.num_groups = num_heads // num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.attention_dropout = attention_dropout
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def _eager(self, q, k, v, attn_mask, dropout_p):
        k = k.repeat(1, self.num_groups, 1, 1)
        v = v.repeat(1, self.num_groups, 1, 1)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        probs = F.dropout(probs, p=dropout_p, training=self.training)
        return torch.matmul(probs, v), probs

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
                output_attentions: bool = False):
        """attention_mask: (batch, seq), 1 = token, 0 = right padding."""
        bsz, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, n, self.num_kv_heads, self.head_dim).transpose(1, 2)

        mask = torch.ones(n, n, dtype=torch.bool, device=hidden_states.device).tril()[None, None]
        if attention_mask is not None:
            mask = mask & attention_mask.bool()[:, None, None, :]

        probs = None
        if output_attentions:
            out, probs = self._eager(q, k, v, mask, self.attention_dropout)
        else:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask,
                dropout_p=self.attention_dropout if self.training else 0.0,
                enable_gqa=True,
            )
        out = out.transpose(1, 2).reshape(bsz, n, -1)
        return self.o_proj(out), probs
