from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def packed_mask(segment_ids: torch.Tensor, causal: bool) -> torch.Tensor:
    """Boolean mask (batch, 1, n, n), True where attention is allowed.

    Documents of a row are numbered 1, 2, 3, ... in order of appearance; 0 is padding
    at the end of the row. Documents do not see each other.
    """
    query_seg = segment_ids[:, :, None]
    key_seg = segment_ids[:, None, :]
    allowed = (query_seg >= key_seg) & (key_seg > 0)
    if causal:
        n = segment_ids.size(1)
        allowed = allowed & torch.ones(n, n, dtype=torch.bool, device=segment_ids.device).tril()
    # padding rows keep their diagonal so that the softmax stays finite
    eye = torch.eye(segment_ids.size(1), dtype=torch.bool, device=segment_ids.device)
    allowed = allowed | (eye & (query_seg == 0))
    return allowed.unsqueeze(1)


class PackedSelfAttention(nn.Module):
    """Self-attention over rows that hold several documents each."""

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = True, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.dropout = dropout
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor, segment_ids: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, n, d = x.shape
        if segment_ids is None:
            segment_ids = torch.ones(b, n, dtype=torch.long, device=x.device)

        q, k, v = self.in_proj(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=packed_mask(segment_ids, self.causal),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out_proj(out.transpose(1, 2).reshape(b, n, d))
