import math

import torch
from torch import nn


class SigmoidAttention(nn.Module):
    """Sigmoid self-attention (Ramapuram et al., 2024).

    Every key is gated on its own, the weights of a row need not sum to one. The constant
    -log(n) makes the expected row sum order one at initialisation, n being the number of keys
    that the row may see.
    """

    def __init__(self, dim=64, num_heads=4, causal=False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, key_padding_mask=None):
        """key_padding_mask: (B, N) bool, True marks padding (as in nn.MultiheadAttention)."""
        B, N, D = x.shape
        q, k, v = self.wqkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        logits = (q @ k.mT) / math.sqrt(self.head_dim)

        allowed = torch.ones(B, 1, N, N, dtype=torch.bool, device=x.device)
        if self.causal:
            allowed = allowed.tril()
        if key_padding_mask is not None:
            allowed = allowed & ~key_padding_mask[:, None, None, :]

        count = allowed.sum(dim=-1, keepdim=True).clamp(min=1).to(logits.dtype)
        weights = torch.sigmoid(logits - count.log())
        weights = weights * allowed
        out = (weights @ v).transpose(1, 2).reshape(B, N, D)
        return self.wo(out)
