import math
from typing import Optional

import torch
from torch import nn, Tensor


class SigmoidSelfAttention(nn.Module):
    """Self-attention with an elementwise sigmoid in place of the softmax.

    Each weight is ``sigmoid(q.k / sqrt(d) - log(n))`` where ``n`` is the number of
    keys that the query may see; the shift keeps the total mass near one at init.
    Rows therefore do not sum to one, see "Theory, Analysis, and Best Practices for
    Sigmoid Self-Attention".
    """

    def __init__(self, dim: int = 64, heads: int = 4, causal: bool = True):
        super().__init__()
        if dim % heads:
            raise ValueError("dim must be divisible by heads")
        self.heads = heads
        self.causal = causal
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, key_mask: Optional[Tensor] = None) -> Tensor:
        """x: (b, n, d); key_mask: (b, n) bool, True for real tokens."""
        b, n, _ = x.shape
        q, k, v = (
            t.view(b, n, self.heads, -1).transpose(1, 2)
            for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale

        visible = torch.ones(b, 1, n, n, dtype=torch.bool, device=x.device)
        if self.causal:
            visible = visible.tril()
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]

        count = visible.sum(dim=-1, keepdim=True).clamp(min=1)
        sim = sim - torch.log(count.to(sim.dtype))
        weights = torch.sigmoid(sim).masked_fill(~visible, 0.0)

        out = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))
