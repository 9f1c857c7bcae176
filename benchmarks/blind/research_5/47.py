from typing import Optional

import torch
import torch.nn as nn


class CappedAudioAttention(nn.Module):
    """Self-attention of a streaming audio encoder with capped logits.

    Frames see the past up to ``left_context`` frames and no future. The logits are limited to
    ``(-logit_cap, logit_cap)`` by a tanh, which keeps half precision training stable.

    Args:
        x: ``[B, T, dim]``
        lengths: optional ``[B]``, number of valid frames
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, left_context: int = 12, logit_cap: float = 5.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.left_context = left_context
        self.logit_cap = logit_cap
        self.norm = nn.LayerNorm(dim)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.post = nn.Linear(dim, dim)
        self.per_dim_scale = nn.Parameter(torch.ones(self.head_dim))

    def _heads(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def _bias(self, x: torch.Tensor, lengths: Optional[torch.Tensor]) -> torch.Tensor:
        pos = torch.arange(x.size(1), device=x.device)
        distance = pos[:, None] - pos[None, :]
        visible = ((distance >= 0) & (distance <= self.left_context))[None]
        if lengths is not None:
            visible = visible & (pos[None, :] < lengths[:, None])[:, None, :]
        bias = torch.zeros(visible.shape, dtype=x.dtype, device=x.device)
        return bias.masked_fill(~visible, torch.finfo(x.dtype).min).unsqueeze(1)

    def forward(self, x: torch.Tensor, lengths: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, t, d = x.shape
        h = self.norm(x)
        q = self._heads(self.q_proj(h)) * self.per_dim_scale * self.head_dim ** -0.5
        k, v = self._heads(self.k_proj(h)), self._heads(self.v_proj(h))

        logits = q @ k.transpose(-1, -2) + self._bias(x, lengths)
        logits = self.logit_cap * torch.tanh(logits / self.logit_cap)
        weights = logits.float().softmax(dim=-1).type_as(v)
        out = (weights @ v).transpose(1, 2).reshape(b, t, d)
        return x + self.post(out)
