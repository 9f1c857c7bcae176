"""The cross-attention cache inherits the decoder's sliding window and keeps only the last encoder keys.

huggingface/transformers #41890 (2025)
https://github.com/huggingface/transformers/pull/41890
"""
from typing import Optional

import torch
from torch import nn


class DynamicCache:
    """Per layer keys and values; `sliding_window` bounds what is stored and returned after the first update."""

    def __init__(self, sliding_window: Optional[int] = None):
        self.sliding_window = sliding_window
        self.keys, self.values, self.is_updated = None, None, False

    def update(self, key_states, value_states):
        if self.keys is not None:
            key_states = torch.cat([self.keys, key_states], dim=-2)
            value_states = torch.cat([self.values, value_states], dim=-2)
        self.keys, self.values = key_states, value_states
        if self.sliding_window is not None:
            self.keys = key_states[:, :, -self.sliding_window + 1:]
            self.values = value_states[:, :, -self.sliding_window + 1:]
        return key_states, value_states


class EncoderDecoderCache:
    def __init__(self, self_attention_cache, cross_attention_cache):
        self.self_attention_cache = self_attention_cache
        self.cross_attention_cache = cross_attention_cache


class T5GemmaAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, sliding_window=None, is_cross=False):
        super().__init__()
        self.num_heads, self.sliding_window, self.is_cross = num_heads, sliding_window, is_cross
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states, encoder_hidden_states, cache):
        split = lambda t: t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        q = split(self.q_proj(hidden_states))
        source = encoder_hidden_states if self.is_cross else hidden_states
        if self.is_cross and cache.is_updated:
            k, v = cache.keys, cache.values
        else:
            k, v = cache.update(split(self.k_proj(source)), split(self.v_proj(source)))
            cache.is_updated = True
        mask = None
        if not self.is_cross:
            i, j = q.shape[-2], k.shape[-2]
            mask = torch.ones(i, j, dtype=torch.bool).tril(j - i).triu(j - i - self.sliding_window + 1)
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class _T5GemmaDecoderBase(nn.Module):
    """Decoder layer: sliding window self attention, then full attention over all encoder states.

    Decoding token by token with the returned `past_key_values` gives the same result as a single call.
    """

    def __init__(self, hidden_size=32, num_heads=4, sliding_window=4):
        super().__init__()
        self.sliding_window = sliding_window
        self.self_attn = T5GemmaAttention(hidden_size, num_heads, sliding_window)
        self.cross_attn = T5GemmaAttention(hidden_size, num_heads, is_cross=True)
        self.norm1, self.norm2 = nn.RMSNorm(hidden_size), nn.RMSNorm(hidden_size)

    def forward(self, inputs_embeds, encoder_hidden_states, past_key_values=None):
        if past_key_values is None:
            past_key_values = self.make_cache()
        h = inputs_embeds
        h = h + self.self_attn(self.norm1(h), None, past_key_values.self_attention_cache)
        h = h + self.cross_attn(self.norm2(h), encoder_hidden_states, past_key_values.cross_attention_cache)
        return h, past_key_values


def broken() -> nn.Module:
    class T5GemmaDecoder(_T5GemmaDecoderBase):
        def make_cache(self):
            return EncoderDecoderCache(
                self_attention_cache=DynamicCache(self.sliding_window),
                cross_attention_cache=DynamicCache(self.sliding_window),
            )

    torch.manual_seed(0)
    return T5GemmaDecoder()


def fixed() -> nn.Module:
    class T5GemmaDecoder(_T5GemmaDecoderBase):
        def make_cache(self):
            return EncoderDecoderCache(
                self_attention_cache=DynamicCache(self.sliding_window),
                cross_attention_cache=DynamicCache(),
            )

    torch.manual_seed(0)
    return T5GemmaDecoder()


def example():
    g = torch.Generator().manual_seed(44)
    return (torch.randn(1, 7, 32, generator=g), torch.randn(1, 9, 32, generator=g)), {}
