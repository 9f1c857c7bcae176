"""ALiBi slopes for a head count that is no power of two are taken from the power-of-two formula.

ml-explore/mlx #343 (2024)
https://github.com/ml-explore/mlx/issues/343
"""
import math
import torch
import torch.nn as nn


def _build(rev):
    class ALiBi(nn.Module):
        """Adds slope_h * -(distance) to the scores, with the slopes of the ALiBi paper's reference code (get_slopes)."""

        @staticmethod
        def create_alibi_slope(num_heads):
            def power_of_2(n):
                start = 2 ** (-8 / n)
                return [start ** (i + 1) for i in range(n)]
            if rev == 1 or math.log2(num_heads).is_integer():
                return torch.tensor(power_of_2(num_heads))
            closest = 2 ** math.floor(math.log2(num_heads))
            extra = power_of_2(2 * closest)[0::2][:num_heads - closest]
            return torch.tensor(power_of_2(closest) + extra)

        def forward(self, scores):
            H, T, S = scores.shape[1:]
            d = torch.arange(S - T, S, device=scores.device)[:, None] - torch.arange(S, device=scores.device)[None]
            return scores - d.abs() * self.create_alibi_slope(H).to(scores)[:, None, None]

    class MultiHeadAttention(nn.Module):
        """Causal attention with ALiBi; forward(x), x (B, T, dims)."""

        def __init__(self, dims=48, num_heads=6):
            super().__init__()
            self.num_heads = num_heads
            self.query_proj = nn.Linear(dims, dims, bias=False)
            self.key_proj = nn.Linear(dims, dims, bias=False)
            self.value_proj = nn.Linear(dims, dims, bias=False)
            self.out_proj = nn.Linear(dims, dims, bias=False)
            self.alibi = ALiBi()

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (p(x).view(B, T, self.num_heads, -1).transpose(1, 2)
                       for p in (self.query_proj, self.key_proj, self.value_proj))
            s = self.alibi(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5)
            s = s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
            return self.out_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return MultiHeadAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
