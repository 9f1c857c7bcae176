"""Resetting the cache only zeroes it and keeps its length, so the next sequence attends to stale empty keys.

huggingface/transformers #48509 (2026)
https://github.com/huggingface/transformers/pull/48509
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class DynamicLayer:
        def __init__(self):
            self.keys = self.values = None

        def get_seq_length(self):
            return 0 if self.keys is None else self.keys.shape[-2]

        def update(self, key_states, value_states):
            if self.keys is None:
                self.keys, self.values = key_states, value_states
            else:
                self.keys = torch.cat([self.keys, key_states], dim=-2)
                self.values = torch.cat([self.values, value_states], dim=-2)
            return self.keys, self.values

        def reset(self):
            if self.keys is None:
                return
            if rev == 1:
                self.keys, self.values = torch.zeros_like(self.keys), torch.zeros_like(self.values)
            else:
                self.keys = self.values = None

    class CachedAttention(nn.Module):
        """Causal attention that keeps a cache for step(). forward(x), x (B, T, C): a new sequence, which resets the cache
        and fills it; step(x) then continues that sequence."""

        def __init__(self, hidden_size=32, num_heads=4):
            super().__init__()
            self.num_heads = num_heads
            self.cache = DynamicLayer()
            self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
            self.o_proj = nn.Linear(hidden_size, hidden_size)

        def step(self, x):
            B, T, C = x.shape
            q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            past = self.cache.get_seq_length()
            k, v = self.cache.update(k, v)
            mask = torch.ones(T, past + T, dtype=torch.bool, device=x.device).tril(past)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.o_proj(y.transpose(1, 2).reshape(B, T, C))

        def forward(self, x):
            self.cache.reset()
            return self.step(x)

    torch.manual_seed(0)
    return CachedAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
