from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F


class PackedSelfAttention(nn.Module):
    """Causal attention over rows in which several documents are packed.

    ``segment_ids`` is (batch, seq): 1, 2, 3, ... number the documents of a row and 0 is padding.
    A token sees only earlier tokens of its own document. Padding positions see themselves and
    the padding before them, so that no softmax row is empty; their output is set to zero.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: torch.Tensor, segment_ids: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, s, c = x.shape
        if segment_ids is None:
            segment_ids = torch.ones(b, s, dtype=torch.long, device=x.device)
        same = segment_ids.unsqueeze(-1).eq(segment_ids.unsqueeze(-2))
        mask = same.tril().unsqueeze(1)

        q, k, v = self.Wqkv(x).view(b, s, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.out_proj(y.transpose(1, 2).reshape(b, s, c))
        return y * segment_ids.ne(0).unsqueeze(-1).to(y.dtype)
