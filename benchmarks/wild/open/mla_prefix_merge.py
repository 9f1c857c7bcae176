"""Partial results over prefix and new tokens are merged by a natural exponential of base-2 log-sum-exps, so the weights are wrong.

sgl-project/sglang #40903 (2026)
https://github.com/sgl-project/sglang/issues/40903
"""
import math
import torch
import torch.nn as nn


def _attn(q, k, v, scale, keep=None):
    """Returns the output and the log-sum-exp in base 2, as the ragged kernels do."""
    s = q @ k.transpose(-2, -1) * scale
    if keep is not None:
        s = s.masked_fill(~keep, float("-inf"))
    return s.softmax(-1) @ v, torch.logsumexp(s, -1) / math.log(2.0)


def _merge_state(o1, lse1, o2, lse2):
    """o1, o2 with natural-log lse1, lse2."""
    m = torch.maximum(lse1, lse2)
    w1, w2 = torch.exp(lse1 - m), torch.exp(lse2 - m)
    return (o1 * w1[..., None] + o2 * w2[..., None]) / (w1 + w2)[..., None]


def _build(rev):
    class PrefixAttention(nn.Module):
        """Causal attention of new tokens over a cached prefix and themselves.

        forward(x, prefix): x (B, T, C) new tokens, prefix (B, P, C) hidden states of the tokens before them.
        """

        def __init__(self, hidden_size=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
            self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.kv_proj = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        def heads(self, t):
            return t.view(t.shape[0], t.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

        def forward(self, x, prefix):
            B, T, C = x.shape
            scale = self.head_dim ** -0.5
            q = self.heads(self.q_proj(x))
            pk, pv = (self.heads(t) for t in self.kv_proj(prefix).chunk(2, -1))
            k, v = (self.heads(t) for t in self.kv_proj(x).chunk(2, -1))
            keep = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
            o1, l1 = _attn(q, pk, pv, scale)
            o2, l2 = _attn(q, k, v, scale, keep)
            if rev == 2:
                l1, l2 = l1 * math.log(2.0), l2 * math.log(2.0)
            y = _merge_state(o1, l1, o2, l2)
            return self.o_proj(y.transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return PrefixAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 4, 32), torch.randn(2, 20, 32)), {}
