import math

import torch
from torch import nn


class SigmoidAttention(nn.Module):
    """Causal attention with an element-wise sigmoid in place of the softmax.

    Rows are not normalised. To keep the output at a sensible size, -log(n) is added to the
    logits, n being the number of keys that the query can see (Ramapuram et al., 2024).
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, bias: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.wo = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, n, dim = x.shape
        q, k, v = self.wqkv(x).chunk(3, dim=-1)
        q = q.view(bsz, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(bsz, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(bsz, n, self.num_heads, self.head_dim).transpose(1, 2)

        logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        visible = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        logits = logits - visible.sum(-1, keepdim=True).to(logits.dtype).log()
        weights = torch.sigmoid(logits.masked_fill(~visible, float("-inf")))

        y = (weights @ v).transpose(1, 2).reshape(bsz, n, dim)
        return self.wo(y)
