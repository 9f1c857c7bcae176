import math
from typing import Optional

import torch
from torch import Tensor, nn


class SigmoidAttention(nn.Module):
    """Attention with an elementwise sigmoid instead of the softmax (Ramapuram et al., 2024).

    The weights of a row are independent of each other and do not sum to one. The bias of
    -log(n), n being the number of keys a query may see, keeps the output about as large as
    with a softmax when training starts.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x: Tensor, valid: Optional[Tensor] = None) -> Tensor:
        """valid: (batch, length) bool, True for real tokens."""
        b, n, d = x.shape

        def heads(t):
            return t.reshape(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        logits = q @ k.mT / math.sqrt(self.head_dim)

        allowed = torch.ones(1, 1, n, n, dtype=torch.bool, device=x.device)
        if self.causal:
            allowed = allowed.tril()
        if valid is not None:
            allowed = allowed & valid[:, None, None, :]

        count = allowed.sum(dim=-1, keepdim=True).clamp(min=1).to(logits.dtype)
        weights = torch.sigmoid(logits - count.log())
        weights = weights * allowed
        return self.o((weights @ v).transpose(1, 2).reshape(b, n, d))
