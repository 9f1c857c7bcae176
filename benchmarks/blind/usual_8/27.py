from math import sqrt

import torch
from torch import nn


class CausalAttention(nn.Module):
    """Masked self-attention for the decoder.

    Parameters
    ----------
    d_model : int
        Width of the model.
    n_heads : int
        Number of heads.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.to_qkv = nn.Linear(d_model, 3 * d_model)
        self.to_out = nn.Linear(d_model, d_model)

    def look_ahead_mask(self, size: int, device: torch.device) -> torch.Tensor:
        keep = torch.tril(torch.ones(size, size, device=device))
        return (1.0 - keep) * float("-inf")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, L, D = x.shape
        qkv = self.to_qkv(x).view(B, L, 3, self.n_heads, self.d_head)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))

        logits = q @ k.transpose(2, 3) / sqrt(self.d_head)
        logits = logits + self.look_ahead_mask(L, x.device)
        weights = torch.softmax(logits, dim=-1)

        y = (weights @ v).transpose(1, 2).reshape(B, L, D)
        return self.to_out(y)
