"""The cache keeps only the last window of keys when several tokens arrive, so their first queries lose old keys.

rasbt/LLMs-from-scratch #1008 (2026)
https://github.com/rasbt/LLMs-from-scratch/issues/1008
"""
import torch
import torch.nn as nn


class _MultiHeadAttentionWithSWABase(nn.Module):
    """Causal attention in which a token attends to itself and to the sliding_window_size - 1 tokens before it.

    With use_cache=True the keys and values of earlier calls are kept, so a sequence may be fed in several chunks;
    the result is the one of a single call. reset_cache() starts a new sequence.
    """

    def __init__(self, d_in, d_out, num_heads, sliding_window_size, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.sliding_window_size = sliding_window_size
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.reset_cache()

    def reset_cache(self):
        self.cache_k, self.cache_v = None, None
        self.ptr_current_pos = 0

    def forward(self, x, use_cache=False):
        b, num_tokens, _ = x.shape
        shape = (b, num_tokens, self.num_heads, self.head_dim)
        queries, keys, values = (f(x).view(shape) for f in (self.W_query, self.W_key, self.W_value))
        if use_cache:
            keys, values = self.update_cache(keys, values, num_tokens)
            q_start = self.ptr_current_pos
            self.ptr_current_pos += num_tokens
        else:
            q_start = 0
        k_start = q_start + num_tokens - keys.shape[1]

        queries, keys, values = queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        q_positions = torch.arange(q_start, q_start + num_tokens, device=x.device).unsqueeze(-1)
        k_positions = torch.arange(k_start, k_start + keys.shape[-2], device=x.device).unsqueeze(0)
        diff = q_positions - k_positions
        mask_bool = (diff < 0) | (diff >= self.sliding_window_size)
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        context_vec = (attn_weights @ values).transpose(1, 2).reshape(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)


def broken() -> nn.Module:
    class MultiHeadAttentionWithSWA(_MultiHeadAttentionWithSWABase):
        def update_cache(self, keys_new, values_new, num_tokens):
            if self.cache_k is None:
                self.cache_k, self.cache_v = keys_new, values_new
            else:
                self.cache_k = torch.cat([self.cache_k, keys_new], dim=1)
                self.cache_v = torch.cat([self.cache_v, values_new], dim=1)
            if self.cache_k.size(1) > self.sliding_window_size:
                self.cache_k = self.cache_k[:, -self.sliding_window_size:]
                self.cache_v = self.cache_v[:, -self.sliding_window_size:]
            return self.cache_k, self.cache_v

    torch.manual_seed(0)
    return MultiHeadAttentionWithSWA(32, 32, 4, sliding_window_size=6)


def fixed() -> nn.Module:
    class MultiHeadAttentionWithSWA(_MultiHeadAttentionWithSWABase):
        def update_cache(self, keys_new, values_new, num_tokens):
            if self.cache_k is None:
                self.cache_k, self.cache_v = keys_new, values_new
            else:
                self.cache_k = torch.cat([self.cache_k, keys_new], dim=1)
                self.cache_v = torch.cat([self.cache_v, values_new], dim=1)
            keep = self.sliding_window_size + num_tokens - 1
            if self.cache_k.size(1) > keep:
                self.cache_k = self.cache_k[:, -keep:]
                self.cache_v = self.cache_v[:, -keep:]
            return self.cache_k, self.cache_v

    torch.manual_seed(0)
    return MultiHeadAttentionWithSWA(32, 32, 4, sliding_window_size=6)


def example():
    g = torch.Generator().manual_seed(19)
    return (torch.randn(2, 5, 32, generator=g),), {"use_cache": True}
