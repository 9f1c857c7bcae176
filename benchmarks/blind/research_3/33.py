import math

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Attention with an elementwise sigmoid (Ramapuram et al. 2024).

    The bias -log(n), n the number of keys a query can see, makes the weights of a
    row sum to about one at initialisation. They are not normalised otherwise.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        # without the constraint of a softmax the outputs need a norm of their own
        self.out_norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor = None) -> torch.Tensor:
        B, T, D = x.shape
        q, k, v = self.to_qkv(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        visible = torch.ones(1, 1, T, T, dtype=torch.bool, device=x.device)
        if self.causal:
            visible = visible.tril()
        if lengths is not None:
            valid = torch.arange(T, device=x.device) < lengths[:, None]
            visible = visible & valid[:, None, None, :]
        n = visible.sum(dim=-1, keepdim=True).clamp(min=1)

        logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        weights = torch.sigmoid(logits - torch.log(n.to(logits.dtype)))
        weights = weights * visible

        out = (weights @ v).transpose(1, 2).reshape(B, T, D)
        return self.to_out(self.out_norm(out))
