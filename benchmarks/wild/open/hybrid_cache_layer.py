"""The sliding-window cache starts shifting one step too early, so the oldest key is lost exactly when the window fills up.

huggingface/transformers #37574 (2025)
https://github.com/huggingface/transformers/issues/37574
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class SlidingLayerCache:
        """Fixed-size storage of the last `max_cache_len` keys and values."""

        def __init__(self, batch, heads, max_cache_len, head_dim):
            self.max_cache_len = max_cache_len
            self.key_cache = torch.zeros(batch, heads, max_cache_len, head_dim)
            self.value_cache = torch.zeros(batch, heads, max_cache_len, head_dim)

        def update(self, key_states, value_states, cache_position):
            n = self.max_cache_len
            if cache_position.shape[0] >= n:
                self.key_cache = key_states[:, :, -n:, :]
                self.value_cache = value_states[:, :, -n:, :]
                return key_states, value_states
            slicing = torch.ones(n, dtype=torch.long).cumsum(0)
            to_shift = cache_position >= n - 1 if rev == 1 else cache_position > n - 1
            indices = (slicing + to_shift[-1].int() - 1) % n
            k_out, v_out = self.key_cache[:, :, indices], self.value_cache[:, :, indices]
            cache_position = cache_position.clamp(0, n - 1)
            k_out[:, :, cache_position] = key_states
            v_out[:, :, cache_position] = value_states
            self.key_cache, self.value_cache = k_out, v_out
            return k_out, v_out

    class GemmaSlidingAttention(nn.Module):
        """Local attention decoded token by token through a window-sized cache.

        forward(x): x (B, T, C). Token t sees tokens t - sliding_window + 1 .. t. All tokens are fed one by one.
        """

        def __init__(self, hidden_size=32, num_heads=4, sliding_window=6):
            super().__init__()
            self.num_heads, self.head_dim, self.sliding_window = num_heads, hidden_size // num_heads, sliding_window
            self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        def step(self, x, cache, t):
            B = x.shape[0]
            q, k, v = (p(x).view(B, 1, self.num_heads, self.head_dim).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            k, v = cache.update(k, v, torch.tensor([t]))
            keep = torch.arange(self.sliding_window) <= t
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[None, None, None])
            return self.o_proj(y.transpose(1, 2).reshape(B, 1, -1))

        def forward(self, x):
            cache = SlidingLayerCache(x.shape[0], self.num_heads, self.sliding_window, self.head_dim)
            return torch.cat([self.step(x[:, t:t + 1], cache, t) for t in range(x.shape[1])], dim=1)

    torch.manual_seed(0)
    return GemmaSlidingAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 10, 32),), {}
