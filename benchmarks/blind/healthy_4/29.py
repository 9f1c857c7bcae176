import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


def masked_softmax(scores: torch.Tensor, mask: Optional[torch.Tensor], dim: int = -1) -> torch.Tensor:
    """Softmax over the entries where ``mask`` is True; slices without any such entry become all zero.

    The fill is finite and the zeros are written afterwards, so neither the output nor the gradient
    contains NaN.
    """
    if mask is None:
        return scores.softmax(dim)
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim).masked_fill(~mask, 0.0)


class PMA(nn.Module):
    """Pooling by multihead attention (Set Transformer), safe for empty sets.

    Args:
        dim: width of seeds and outputs.
        num_heads: number of attention heads.
        num_seeds: number of pooled vectors per set.
        dim_in: width of the set elements (default: ``dim``).
        ln: use layer norms.

    Returns the pooled vectors (batch, num_seeds, dim) and the attention weights, averaged over
    heads, (batch, num_seeds, set_size).
    """

    def __init__(
        self, dim: int = 128, num_heads: int = 4, num_seeds: int = 1, dim_in: Optional[int] = None, ln: bool = True
    ):
        super().__init__()
        assert dim % num_heads == 0
        dim_in = dim if dim_in is None else dim_in
        self.num_heads = num_heads
        self.seeds = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.seeds)
        self.fc_q = nn.Linear(dim, dim)
        self.fc_k = nn.Linear(dim_in, dim)
        self.fc_v = nn.Linear(dim_in, dim)
        self.fc_o = nn.Linear(dim, dim)
        self.ln0 = nn.LayerNorm(dim) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim) if ln else nn.Identity()

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        """x: (batch, set_size, dim_in); mask: (batch, set_size) bool, True for elements of the set."""
        b, n, _ = x.shape
        h = self.num_heads
        q = self.fc_q(self.seeds).expand(b, -1, -1)
        k, v = self.fc_k(x), self.fc_v(x)

        q_, k_, v_ = (t.reshape(b, t.shape[1], h, -1).transpose(1, 2) for t in (q, k, v))
        scores = q_ @ k_.transpose(-1, -2) / math.sqrt(q_.shape[-1])
        attn = masked_softmax(scores, None if mask is None else mask.bool()[:, None, None, :])

        # the residual is the projected query, as in the reference implementation of MAB
        o = q + (attn @ v_).transpose(1, 2).reshape(b, q.shape[1], -1)
        o = self.ln0(o)
        o = self.ln1(o + torch.relu(self.fc_o(o)))
        return o, attn.mean(dim=1)
