import math

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Sigmoid attention (Ramapuram et al., 2024).

    The softmax is replaced by an element-wise sigmoid with the bias b = -log(n), n being the
    number of visible keys, which keeps the row sums near one at initialisation. Rows are not normalised.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = False, qk_norm: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)

        if self.causal:
            counts = torch.arange(1, n + 1, device=x.device, dtype=logits.dtype)
            logits = logits - counts.log()[:, None]
            future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            logits = logits.masked_fill(future, float("-inf"))
        else:
            logits = logits - math.log(n)

        weights = torch.sigmoid(logits)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))
