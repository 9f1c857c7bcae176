from typing import Optional

import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Causal multi-head attention with one learned sink logit per head.

    The sink takes part in the normalisation only; it has no value vector, so a head
    can put its mass there and contribute nothing.

    Args:
        dim: model width
        num_heads / num_kv_heads: query heads and (shared) key-value heads
        sliding_window: number of visible tokens, None = all
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_kv_heads: int = 2,
                 sliding_window: Optional[int] = None):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = dim // num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(dim, num_heads * self.head_dim)
        self.k_proj = nn.Linear(dim, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(dim, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(num_heads * self.head_dim, dim)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def _causal_bias(self, T: int, like: torch.Tensor) -> torch.Tensor:
        i = torch.arange(T, device=like.device)
        hidden = i[None, :] > i[:, None]
        if self.sliding_window is not None:
            hidden |= i[:, None] - i[None, :] >= self.sliding_window
        return like.new_zeros(T, T).masked_fill(hidden, float("-inf"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        n_rep = self.num_heads // self.num_kv_heads
        q = self.q_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k = k.repeat_interleave(n_rep, dim=1)
        v = v.repeat_interleave(n_rep, dim=1)

        logits = torch.matmul(q, k.transpose(-1, -2)) * self.head_dim ** -0.5
        logits = logits + self._causal_bias(T, logits)

        sinks = self.sinks.view(1, -1, 1, 1).expand(B, -1, T, 1)
        combined = torch.cat([sinks, logits], dim=-1)
        combined = combined - combined.max(dim=-1, keepdim=True).values
        probs = torch.softmax(combined, dim=-1)
        scores = probs[..., :-1]

        out = torch.matmul(scores, v)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))
