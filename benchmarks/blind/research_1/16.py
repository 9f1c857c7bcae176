import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Sigmoid self-attention (Ramapuram et al., 2024).

    Every query-key pair is gated on its own. The logits get the offset ``-log(n)`` with ``n`` the
    number of keys that the query may see, so that a row's mass is of order one at initialisation.
    Rows are not normalised.

    Args:
        mask: bool (batch, seq), True = real token.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = False, dropout: float = 0.0):
        super().__init__()
        if dim % num_heads:
            raise ValueError("dim must be divisible by num_heads")
        self.h = num_heads
        self.d = dim // num_heads
        self.causal = causal
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_norm = nn.LayerNorm(dim)
        self.out_proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.in_proj(x).view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4)

        allowed = torch.ones(1, 1, n, n, dtype=torch.bool, device=x.device)
        if self.causal:
            allowed = allowed.tril()
        if mask is not None:
            allowed = allowed & mask[:, None, None, :]

        count = allowed.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
        logits = q @ k.transpose(-1, -2) / self.d ** 0.5 - count.log()
        gates = torch.sigmoid(logits) * allowed
        y = self.drop(gates) @ v

        y = y.transpose(1, 2).reshape(b, n, c)
        return self.out_proj(self.out_norm(y))
