import torch
from torch import nn


def softmax_one(x, dim=-1):
    """Quiet softmax: exp(x_i) / (1 + sum_j exp(x_j)). Lets a head output (nearly) nothing."""
    x = x - x.max(dim=dim, keepdim=True).values
    exp_x = torch.exp(x)
    return exp_x / (1.0 + exp_x.sum(dim=dim, keepdim=True))


class QuietAttention(nn.Module):
    """Causal self-attention with the "off by one" softmax of E. Miller."""

    def __init__(self, d_model=256, n_heads=8, dropout=0.0):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.view(batch, seq, self.n_heads, self.d_head).transpose(1, 2)
        k = k.view(batch, seq, self.n_heads, self.d_head).transpose(1, 2)
        v = v.view(batch, seq, self.n_heads, self.d_head).transpose(1, 2)

        logits = q @ k.transpose(-2, -1) * self.d_head ** -0.5
        future = torch.triu(torch.ones(seq, seq, dtype=torch.bool, device=x.device), 1)
        logits = logits.masked_fill(future, float("-inf"))

        weights = self.dropout(softmax_one(logits))
        out = (weights @ v).transpose(1, 2).reshape(batch, seq, width)
        return self.out_proj(out)
