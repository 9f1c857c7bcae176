from typing import Optional, Tuple

import torch
from torch import nn
import torch.nn.functional as F


class StreamingAttention(nn.Module):
    """Attention for endless streams (attention sinks).

    The cache handed to the next step is bounded: the first ``num_sinks`` tokens of the
    stream are kept for good, followed by the ``window`` most recent ones. A prompt is
    itself processed with plain causal attention. The module has no positional
    encoding of its own.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_sinks: int = 4, window: int = 16):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.num_sinks = num_sinks
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def _evict(self, t: torch.Tensor) -> torch.Tensor:
        if t.size(2) <= self.window:
            return t
        return torch.cat([t[:, :, : self.num_sinks], t[:, :, -self.window:]], dim=2)

    def forward(
        self,
        x: torch.Tensor,
        past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)

        offset = 0
        if past is not None:
            offset = past[0].size(2)
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)

        visible = torch.ones(t, offset + t, dtype=torch.bool, device=x.device).tril(diagonal=offset)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        y = self.out(y.transpose(1, 2).reshape(b, t, c))
        return y, (self._evict(k), self._evict(v))
