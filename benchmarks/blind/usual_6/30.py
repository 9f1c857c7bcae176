import math

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Attention with an elementwise sigmoid instead of a softmax (Ramapuram et al., 2024).

    The rows do not sum to one. The logits get the bias -log(n), n being the number of
    keys, which keeps the total weight of a row near one at initialisation.
    """

    def __init__(self, dim=64, num_heads=4, causal=False):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        """key_padding_mask: bool (B, T), True at padding."""
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-2, -1) * self.head_dim ** -0.5

        blocked = torch.zeros(1, 1, T, T, dtype=torch.bool, device=x.device)
        if self.causal:
            blocked = blocked | torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        if key_padding_mask is not None:
            blocked = blocked | key_padding_mask[:, None, None, :]
        n = (~blocked).sum(dim=-1, keepdim=True).clamp(min=1)

        logits = logits - torch.log(n.to(logits.dtype))
        weights = torch.sigmoid(logits.masked_fill(blocked, float("-inf")))
        return self.proj((weights @ v).transpose(1, 2).reshape(B, T, C))
