"""Differential attention (Ye et al., 2024), from the appendix."""
import math

import torch
import torch.nn as nn


class DifferentialAttention(nn.Module):
    """Two softmax maps per head; the second, times lambda, is taken away from the first.

    Rows add up to 1 - lambda, which the norm per head and the factor
    (1 - lambda_init) after it take care of. Values are twice as wide as queries.
    """

    def __init__(self, dim=64, num_heads=2, depth=1):
        super().__init__()
        self.h = num_heads
        self.d = dim // num_heads // 2
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.lq1 = nn.Parameter(torch.randn(self.d) * 0.1)
        self.lk1 = nn.Parameter(torch.randn(self.d) * 0.1)
        self.lq2 = nn.Parameter(torch.randn(self.d) * 0.1)
        self.lk2 = nn.Parameter(torch.randn(self.d) * 0.1)
        self.gain = nn.Parameter(torch.ones(2 * self.d))

    def forward(self, x):
        b, t, c = x.shape
        q = self.q(x).view(b, t, self.h, 2, self.d)
        k = self.k(x).view(b, t, self.h, 2, self.d)
        v = self.v(x).view(b, t, self.h, 2 * self.d)
        s = torch.einsum("bihmd,bjhmd->bhmij", q, k) / math.sqrt(self.d)
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        a = s.softmax(-1)
        lam = (self.lq1 @ self.lk1).exp() - (self.lq2 @ self.lk2).exp() + self.lambda_init
        y = torch.einsum("bhij,bjhd->bihd", a[:, :, 0] - lam * a[:, :, 1], v)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain
        return self.o((y * (1 - self.lambda_init)).reshape(b, t, c))
