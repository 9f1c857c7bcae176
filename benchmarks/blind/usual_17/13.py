import math

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Sigmoid self-attention (Ramapuram et al., 2024).

    Every key gets an independent gate sigma(q.k / sqrt(d) + b). With b = -log(n) the row mass
    starts near one; rows are deliberately not normalised.
    """

    def __init__(self, dim=64, num_heads=4, causal=True):
        super().__init__()
        self.h = num_heads
        self.dh = dim // num_heads
        self.causal = causal
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, valid=None):
        """valid: optional bool (B, N), False on padding."""
        B, N, D = x.shape
        q, k, v = self.wqkv(x).view(B, N, 3, self.h, self.dh).permute(2, 0, 3, 1, 4)

        allowed = torch.ones(B, 1, N, N, dtype=torch.bool, device=x.device)
        if self.causal:
            allowed = allowed.tril()
        if valid is not None:
            allowed = allowed & valid[:, None, None, :]

        count = allowed.sum(dim=-1, keepdim=True).clamp(min=1)
        logits = q @ k.mT / math.sqrt(self.dh) - torch.log(count.to(x.dtype))
        gates = torch.sigmoid(logits) * allowed
        y = gates @ v
        return self.wo(y.transpose(1, 2).reshape(B, N, D))
