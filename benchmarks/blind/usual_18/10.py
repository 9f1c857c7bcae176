import math

import torch
from torch import nn


class SigmoidAttention(nn.Module):
    """Attention whose weights are independent sigmoids instead of a softmax.

    A row of weights does not sum to one.  Following "Theory, Analysis, and Best Practices for Sigmoid
    Self-Attention" the logits are shifted by -log(n), with n the number of keys that the query can
    see, so that the expected mass of a row is about one at initialisation.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = True):
        super().__init__()
        self.h = num_heads
        self.dh = dim // num_heads
        self.causal = causal
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, key_mask=None):
        """
        x: (B, N, dim)
        key_mask: optional bool (B, N), True where a token is real.
        """
        B, N, D = x.shape
        q, k, v = (
            t.view(B, N, self.h, self.dh).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1)
        )

        visible = torch.ones(1, 1, N, N, dtype=torch.bool, device=x.device)
        if self.causal:
            visible = torch.tril(visible)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]

        count = visible.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
        logits = q @ k.transpose(-1, -2) / math.sqrt(self.dh) - torch.log(count)
        weights = torch.sigmoid(logits).masked_fill(~visible, 0.0)

        y = (weights @ v).transpose(1, 2).reshape(B, N, D)
        return self.out_proj(y)
