from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class SegmentAttention(nn.Module):
    """Causal attention over packed rows.

    segment_ids: (batch, seq) ints; tokens attend only within equal ids. Id 0 is padding: no document sees it,
    and its outputs are zero. Rotary positions are not reset per document because only differences
    of positions within a document matter.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, theta: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.theta = theta

    def rope(self, x):
        n, d = x.shape[-2:]
        inv = self.theta ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
        ang = torch.arange(n, device=x.device, dtype=torch.float32)[:, None] * inv
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x: torch.Tensor, segment_ids: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, n, c = x.shape
        if segment_ids is None:
            segment_ids = torch.ones(b, n, dtype=torch.long, device=x.device)
        q, k, v = (
            t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for t in self.wqkv(x).chunk(3, dim=-1)
        )
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        mask = (same & causal)[:, None]
        out = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, attn_mask=mask)
        out = self.wo(out.transpose(1, 2).reshape(b, n, c))
        return out * (segment_ids != 0).unsqueeze(-1).to(out.dtype)
