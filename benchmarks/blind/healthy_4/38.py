"""Self-attention with sparsemax (Martins & Astudillo, 2016) in place of softmax."""
from typing import Optional, Tuple

import torch
from torch import Tensor, nn


def sparsemax(z: Tensor) -> Tensor:
    """Euclidean projection of the last axis onto the simplex. Unlike softmax it can give exact zeros."""
    z = z - z.amax(dim=-1, keepdim=True).detach()
    z_sorted, _ = torch.sort(z, dim=-1, descending=True)
    rank = torch.arange(1, z.size(-1) + 1, device=z.device, dtype=z.dtype)
    cumsum = z_sorted.cumsum(dim=-1)
    support = 1 + rank * z_sorted > cumsum
    # the support is a prefix of the sorted entries and never empty: the first one has 1 + z > z
    k = support.sum(dim=-1, keepdim=True)
    tau = (cumsum.gather(-1, k - 1) - 1) / k.to(z.dtype)
    return torch.clamp(z - tau, min=0)


class SparsemaxAttention(nn.Module):
    """Multi-head self-attention with sparse weights.

    Args:
        dim: input and output width.
        num_heads: number of heads.
        dropout: dropout on the attention weights.
        return_weights: also return the weights (batch, heads, length, length), before dropout.

    ``mask`` of forward is (batch, length), True for tokens. A row without any token has zero weights.
    """

    MASK_VALUE = -1e9

    def __init__(self, dim: int = 128, num_heads: int = 4, dropout: float = 0.0, return_weights: bool = False):
        super().__init__()
        if dim % num_heads != 0:
            raise ValueError(f"dim ({dim}) must be divisible by num_heads ({num_heads})")
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.return_weights = return_weights
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None):
        b, n, d = x.shape
        q, k, v = (
            proj(x).view(b, n, self.num_heads, -1).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        # the threshold is found by sorting and summing: keep that in float32 under autocast
        scores = torch.matmul(q * self.scale, k.transpose(-1, -2)).float()
        if mask is not None:
            hidden = ~mask.bool()[:, None, None, :]
            weights = sparsemax(scores.masked_fill(hidden, self.MASK_VALUE))
            weights = weights.masked_fill(hidden, 0.0)
        else:
            weights = sparsemax(scores)

        weights = weights.to(v.dtype)
        out = torch.matmul(self.dropout(weights), v)
        out = self.o_proj(out.transpose(1, 2).reshape(b, n, d))
        return (out, weights) if self.return_weights else out
