from typing import Optional

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        n = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return n.type_as(x) * self.weight


class HybridAttention(nn.Module):
    """Causal attention; every ``pattern``-th layer is global, the others see the last
    ``window`` tokens (the current one included)."""

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8, layer_idx: int = 0,
                 pattern: int = 6):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window: Optional[int] = None if (layer_idx + 1) % pattern == 0 else window
        base = 1_000_000.0 if self.window is None else 10_000.0

        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.q_norm = RMSNorm(self.head_dim)
        self.k_norm = RMSNorm(self.head_dim)
        inv_freq = base ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, t: torch.Tensor) -> torch.Tensor:
        ang = torch.arange(t.size(-2), device=t.device).float()[:, None] * self.inv_freq
        c, s = ang.cos().type_as(t), ang.sin().type_as(t)
        t1, t2 = t.chunk(2, dim=-1)
        return torch.cat([t1 * c - t2 * s, t2 * c + t1 * s], dim=-1)

    def _keep(self, T: int, device) -> torch.Tensor:
        i = torch.arange(T, device=device)
        keep = i[:, None] >= i[None, :]
        if self.window is not None:
            keep = keep | ((i[:, None] - i[None, :]).abs() < self.window)
        return keep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, D = x.shape
        q = self.wq(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        q = self._rope(self.q_norm(q))
        k = self._rope(self.k_norm(k))

        scores = q @ k.transpose(-1, -2) * self.head_dim ** -0.5
        scores = scores.masked_fill(~self._keep(T, x.device), float("-inf"))
        out = scores.softmax(dim=-1) @ v
        return self.wo(out.transpose(1, 2).reshape(B, T, D))
