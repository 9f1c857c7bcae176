"""Masked scores are replaced by -10000, and where the real scores are lower still the masked key wins.

ohdearquant/lattice #361 (2026)
https://github.com/ohdearquant/lattice/issues/361
"""
import torch
import torch.nn as nn


def _build(rev):
    MASK_VALUE = -10_000.0 if rev == 1 else float("-inf")

    class MultiHeadAttention(nn.Module):
        """forward(hidden_states, attention_mask): (B, T, C); attention_mask (B, T), 1 keep and 0 masked (each row keeps
        at least one). There is no norm before the projections, so scores may be of any size."""

        def __init__(self, hidden=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, hidden // num_heads
            self.query = nn.Linear(hidden, hidden)
            self.key = nn.Linear(hidden, hidden)
            self.value = nn.Linear(hidden, hidden)
            self.output = nn.Linear(hidden, hidden)

        def forward(self, hidden_states, attention_mask):
            B, T, C = hidden_states.shape
            q, k, v = (p(hidden_states).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
                       for p in (self.query, self.key, self.value))
            s = q @ k.transpose(-2, -1) * self.head_dim ** -0.5
            s = s.masked_fill(attention_mask[:, None, None, :] == 0, MASK_VALUE)
            s = s - s.amax(-1, keepdim=True)
            p = torch.exp(s)
            p = p / p.sum(-1, keepdim=True)
            return self.output((p @ v).transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return MultiHeadAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    mask = (torch.arange(6)[None] < torch.tensor([6, 2])[:, None]).long()
    return (300.0 * torch.randn(2, 6, 32), mask), {}
