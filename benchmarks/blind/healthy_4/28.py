from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def positions_from_segments(segment_ids: Tensor) -> Tensor:
    """Position of each token inside its (contiguous) segment, e.g. [1 1 1 2 2 0] -> [0 1 2 0 1 0]."""
    index = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    is_start = torch.ones_like(segment_ids, dtype=torch.bool)
    is_start[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    start = torch.where(is_start, index, torch.zeros_like(index)).cummax(dim=1).values
    return index - start


class PackedSelfAttention(nn.Module):
    """Causal self-attention over packed rows.

    Several documents share a row; ``segment_ids`` (batch, length) numbers them 1, 2, ... and is 0 on
    padding. A token attends only within its own document and rotary positions restart with each
    document. Outputs at padding are zero. Without ``segment_ids`` a row is one document.
    """

    def __init__(self, d_model: int = 256, n_heads: int = 8, rope_base: float = 10_000.0, dropout: float = 0.0):
        super().__init__()
        if d_model % n_heads:
            raise ValueError("d_model must be a multiple of n_heads")
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.dropout = dropout
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model)
        inv_freq = rope_base ** (-torch.arange(0, self.d_head, 2).float() / self.d_head)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions[:, None, :, None].float() * self.inv_freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def forward(self, x: Tensor, segment_ids: Optional[Tensor] = None) -> Tensor:
        batch, length, d_model = x.shape
        if segment_ids is None:
            segment_ids = torch.ones(batch, length, dtype=torch.long, device=x.device)

        q, k, v = self.qkv(x).view(batch, length, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4).unbind(0)
        positions = positions_from_segments(segment_ids)
        q, k = self.rope(q, positions), self.rope(k, positions)

        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        # every token, padding too, sees at least itself
        mask = (same & causal).unsqueeze(1)

        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        y = self.out(y.transpose(1, 2).reshape(batch, length, d_model))
        return y.masked_fill((segment_ids == 0).unsqueeze(-1), 0.0)
