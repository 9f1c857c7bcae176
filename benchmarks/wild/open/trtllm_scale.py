"""The kernel wrapper multiplies the caller's scale tensor by log2(e) in place, so the scale grows with every call.

flashinfer-ai/flashinfer #2084 (2025)
https://github.com/flashinfer-ai/flashinfer/pull/2084
"""
import torch
import torch.nn as nn

log2e = 1.44269504


def _build(rev):
    def batch_context(q, k, v, bmm1_scale):
        if rev == 1:
            bmm1_scale *= log2e
        else:
            bmm1_scale = bmm1_scale * log2e
        s = q @ k.transpose(-2, -1) * bmm1_scale
        T = s.shape[-1]
        s = s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=s.device).triu(1), float("-inf"))
        p = torch.exp2(s - s.amax(-1, keepdim=True))
        return p / p.sum(-1, keepdim=True) @ v

    class ContextAttention(nn.Module):
        """Causal softmax(q k^T / sqrt(head_dim)) v; forward(x), x (B, T, C)."""

        def __init__(self, hidden_size=32, num_heads=4):
            super().__init__()
            self.num_heads = num_heads
            self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.register_buffer("bmm1_scale", torch.tensor((hidden_size // num_heads) ** -0.5), persistent=False)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = self.qkv_proj(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            y = batch_context(q, k, v, self.bmm1_scale)
            return self.o_proj(y.transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return ContextAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
