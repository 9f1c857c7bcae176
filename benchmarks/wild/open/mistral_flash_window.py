"""The flash window counts the keys to the left inclusively, so a window of W tokens is run as W + 1.

huggingface/transformers #39408 (2025)
https://github.com/huggingface/transformers/issues/39408
"""
import math

import torch
import torch.nn as nn


def flash_attn_func(q, k, v, causal=False, window_size=(-1, -1)):
    """
    q, k, v: (batch, seqlen, heads, head_dim).
    If window_size != (-1, -1), implements sliding window local attention. Query at position i
    will only attend to keys between [i - window_size[0], i + window_size[1]] inclusive.
    """
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    i = torch.arange(q.shape[1], device=q.device)[:, None]
    j = torch.arange(k.shape[1], device=q.device)[None, :]
    keep = torch.ones_like(i + j, dtype=torch.bool)
    if causal:
        keep &= j <= i
    if window_size[0] >= 0:
        keep &= j >= i - window_size[0]
    if window_size[1] >= 0:
        keep &= j <= i + window_size[1]
    scores = scores.masked_fill(~keep, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


class _MistralAttentionBase(nn.Module):
    """
    Causal multi-headed attention with a sliding window: every token attends to itself and to the
    `sliding_window - 1` tokens before it.
    """

    def __init__(self, hidden_size=32, num_heads=4, sliding_window=4):
        super().__init__()
        self.num_heads, self.head_dim, self.sliding_window = num_heads, hidden_size // num_heads, sliding_window
        self.is_causal = True
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states):
        hidden_shape = (*hidden_states.shape[:-1], self.num_heads, self.head_dim)
        query_states = self.q_proj(hidden_states).view(hidden_shape)
        key_states = self.k_proj(hidden_states).view(hidden_shape)
        value_states = self.v_proj(hidden_states).view(hidden_shape)
        attn_output = self._flash_attention_forward(query_states, key_states, value_states, self.sliding_window)
        return self.o_proj(attn_output.reshape(*hidden_states.shape))


def broken() -> nn.Module:
    class MistralAttention(_MistralAttentionBase):
        def _flash_attention_forward(self, query_states, key_states, value_states, sliding_window=None):
            # Assuming 4D tensors, key_states.shape[1] is the key/value sequence length (source length).
            use_sliding_windows = sliding_window is not None and key_states.shape[1] > sliding_window
            flash_kwargs = {"window_size": (sliding_window, sliding_window)} if use_sliding_windows else {}
            return flash_attn_func(query_states, key_states, value_states, causal=self.is_causal, **flash_kwargs)

    torch.manual_seed(0)
    return MistralAttention()


def fixed() -> nn.Module:
    class MistralAttention(_MistralAttentionBase):
        def _flash_attention_forward(self, query_states, key_states, value_states, sliding_window=None):
            # Assuming 4D tensors, key_states.shape[1] is the key/value sequence length (source length).
            use_sliding_windows = sliding_window is not None and key_states.shape[1] > sliding_window
            flash_kwargs = {"window_size": (sliding_window - 1, sliding_window - 1)} if use_sliding_windows else {}
            return flash_attn_func(query_states, key_states, value_states, causal=self.is_causal, **flash_kwargs)

    torch.manual_seed(0)
    return MistralAttention()
