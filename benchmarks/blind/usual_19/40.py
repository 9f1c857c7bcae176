import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def attention_forward(x, w_qkv, b_qkv, w_out, b_out, n_heads):
    """Masked self-attention on x of shape (batch, time, width); the weights are passed in."""
    batch, time, width = x.shape
    d = width // n_heads

    q, k, v = F.linear(x, w_qkv, b_qkv).chunk(3, dim=-1)
    q = q.reshape(batch, time, n_heads, d).transpose(1, 2)
    k = k.reshape(batch, time, n_heads, d).transpose(1, 2)
    v = v.reshape(batch, time, n_heads, d).transpose(1, 2)

    scores = q @ k.transpose(-1, -2) / math.sqrt(d)
    mask = torch.ones(time, time, device=x.device, dtype=x.dtype).tril()
    weights = F.softmax(scores, dim=-1) * mask

    y = (weights @ v).transpose(1, 2).reshape(batch, time, width)
    return F.linear(y, w_out, b_out)


class FunctionalCausalAttention(nn.Module):
    """Holds the parameters for `attention_forward` (causal, softmax-normalised)."""

    def __init__(self, width=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.w_qkv = nn.Parameter(torch.empty(3 * width, width))
        self.b_qkv = nn.Parameter(torch.zeros(3 * width))
        self.w_out = nn.Parameter(torch.empty(width, width))
        self.b_out = nn.Parameter(torch.zeros(width))
        nn.init.xavier_uniform_(self.w_qkv)
        nn.init.xavier_uniform_(self.w_out)

    def forward(self, x):
        return attention_forward(x, self.w_qkv, self.b_qkv, self.w_out, self.b_out, self.n_heads)
