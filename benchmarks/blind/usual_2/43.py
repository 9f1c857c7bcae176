import torch
import torch.nn as nn


class StrictPastWindowAttention(nn.Module):
    """Pre-norm local attention over the past, the current token excluded.

    Token i looks at i - window, ..., i - 1. What the token itself holds reaches the output through the
    residual path only. A learned null slot is always visible, it is what the first token attends to.
    """

    def __init__(self, dim=64, num_heads=4, window=8):
        super().__init__()
        assert dim % num_heads == 0
        self.h = num_heads
        self.d = dim // num_heads
        self.window = window
        self.norm = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.null_k = nn.Parameter(torch.randn(num_heads, 1, self.d) * 0.02)
        self.null_v = nn.Parameter(torch.zeros(num_heads, 1, self.d))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        y = self.norm(x)
        q = self.q(y).view(b, n, self.h, self.d).transpose(1, 2)
        k, v = self.kv(y).view(b, n, 2, self.h, self.d).permute(2, 0, 3, 1, 4)

        k = torch.cat([self.null_k.expand(b, -1, -1, -1), k], dim=2)
        v = torch.cat([self.null_v.expand(b, -1, -1, -1), v], dim=2)

        i = torch.arange(n, device=x.device)
        gap = i[:, None] - i[None, :]
        visible = (gap >= 1) & (gap <= self.window)
        visible = torch.cat([visible.new_ones(n, 1), visible], dim=1)

        logits = q @ k.transpose(-1, -2) / self.d ** 0.5
        logits = logits.masked_fill(~visible, float("-inf"))
        z = logits.softmax(-1) @ v
        return x + self.out(z.transpose(1, 2).reshape(b, n, c))
