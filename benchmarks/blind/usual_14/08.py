import math

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Attention with elementwise sigmoid in place of softmax (Ramapuram et al., 2024).

    The logits get a bias of -log(n), n = number of keys, so that the row sums start out near one.
    Rows are not normalised.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        logits = q @ k.mT / math.sqrt(self.head_dim)
        if self.causal:
            visible = torch.arange(1, n + 1, device=x.device, dtype=logits.dtype)
            logits = logits - visible.log()[:, None]
            weights = torch.sigmoid(logits).tril()
        else:
            weights = torch.sigmoid(logits - math.log(n))
        y = weights @ v
        return self.out(y.transpose(1, 2).flatten(2))
