"""Attention with maps for the visualisations of chapter 3."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class InspectableAttention(nn.Module):
    """Causal self-attention that can hand out the weights it used.

    Returns (output, weights); weights is (batch, num_heads, seq, seq) or None.
    """

    def __init__(self, d_model=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.d_head = d_model // num_heads
        self.dropout = dropout
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, need_weights=False):
        b, n, d = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.view(b, n, self.num_heads, self.d_head).transpose(1, 2)
        k = k.view(b, n, self.num_heads, self.d_head).transpose(1, 2)
        v = v.view(b, n, self.num_heads, self.d_head).transpose(1, 2)

        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        out = self.out_proj(out.transpose(1, 2).reshape(b, n, d))

        weights = None
        if need_weights:
            # the fused kernel does not return them, so compute them here
            with torch.no_grad():
                weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.d_head), dim=-1)
        return out, weights
