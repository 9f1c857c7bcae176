"""is_causal=True is passed with fewer queries than keys, and the kernel aligns it to the top-left corner, so decoded tokens see only the start of the cache.

open-lm-engine/lm-engine #498 (2026)
https://github.com/open-lm-engine/lm-engine/pull/498
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class Attention(nn.Module):
        """Causal attention with a cache: forward(hidden_states, cache=None), cache (k, v) each (B, T_past, heads, D) of
        the tokens before. New tokens see the whole cache and, causally, each other. Returns (output, cache)."""

        def __init__(self, hidden_size=32, num_heads=4, softmax_dropout=0.0):
            super().__init__()
            self.num_heads, self.softmax_dropout_p, self.causal = num_heads, softmax_dropout, True
            self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
            self.c_proj = nn.Linear(hidden_size, hidden_size)

        def forward(self, hidden_states, cache=None, attention_mask=None):
            B, T, C = hidden_states.shape
            q, k, v = self.c_attn(hidden_states).view(B, T, 3, self.num_heads, -1).unbind(2)
            if cache is not None:
                k, v = torch.cat([cache[0], k], dim=1), torch.cat([cache[1], v], dim=1)
            if rev == 2 and attention_mask is None and k.size(1) != T:
                attention_mask = torch.ones(T, k.size(1), dtype=torch.bool, device=q.device).tril(k.size(1) - T)
            y = F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=attention_mask,
                dropout_p=self.softmax_dropout_p if self.training else 0,
                is_causal=self.causal if attention_mask is None else False)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C)), (k, v)

    torch.manual_seed(0)
    return Attention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 2, 32),), {"cache": (torch.randn(2, 7, 4, 8), torch.randn(2, 7, 4, 8))}
