"""The sliding cache rolls one step too early, dropping the oldest key while the window still has a free slot.

huggingface/transformers #37574 (2025)
https://github.com/huggingface/transformers/issues/37574
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class _SlidingWindowCacheBase:
    """Static cache of the last `max_cache_len` keys and values, oldest first."""

    def __init__(self, batch_size, num_heads, max_cache_len, head_dim):
        self.max_cache_len = max_cache_len
        self.key_cache = torch.zeros(batch_size, num_heads, max_cache_len, head_dim)
        self.value_cache = torch.zeros(batch_size, num_heads, max_cache_len, head_dim)

    def update(self, key_states, value_states, cache_position):
        self.key_cache = self._sliding_update(self.key_cache, key_states, cache_position)
        self.value_cache = self._sliding_update(self.value_cache, value_states, cache_position)
        return self.key_cache, self.value_cache


class _AttentionLayer(nn.Module):
    """
    Decodes one token a call: `forward(hidden_states [batch, 1, hidden], cache_position [1], past_key_value)`.
    The token attends to itself and to the `sliding_window - 1` tokens before it.
    """

    cache_class: type

    def __init__(self, hidden_size=32, num_heads=4, sliding_window=6):
        super().__init__()
        self.num_heads, self.head_dim, self.sliding_window = num_heads, hidden_size // num_heads, sliding_window
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def new_cache(self, batch_size):
        return self.cache_class(batch_size, self.num_heads, self.sliding_window, self.head_dim)

    def forward(self, hidden_states, cache_position, past_key_value):
        shape = (*hidden_states.shape[:-1], self.num_heads, self.head_dim)
        query_states = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        key_states, value_states = past_key_value.update(key_states, value_states, cache_position)
        # slots that have been written so far
        filled = torch.arange(self.sliding_window, device=hidden_states.device) <= cache_position[-1]
        attn_output = F.scaled_dot_product_attention(query_states, key_states, value_states, attn_mask=filled[None, :])
        return self.o_proj(attn_output.transpose(1, 2).flatten(2))


class _Decoder(nn.Module):
    """Feeds a sequence [batch, length, hidden] token by token through the cached layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states):
        cache = self.layer.new_cache(hidden_states.shape[0])
        outs = [self.layer(hidden_states[:, t:t + 1], torch.tensor([t]), cache) for t in range(hidden_states.shape[1])]
        return torch.cat(outs, dim=1)


def broken() -> nn.Module:
    class SlidingWindowCache(_SlidingWindowCacheBase):
        def _sliding_update(self, out, states, cache_position):
            slicing = torch.ones(self.max_cache_len, dtype=torch.long, device=states.device).cumsum(0)
            cache_position = cache_position.clamp(0, self.max_cache_len - 1)
            to_shift = cache_position >= self.max_cache_len - 1
            indices = (slicing + to_shift[-1].int() - 1) % self.max_cache_len

            out = out[:, :, indices]
            out[:, :, cache_position] = states
            return out

    class GemmaAttention(_AttentionLayer):
        cache_class = SlidingWindowCache

    torch.manual_seed(0)
    return _Decoder(GemmaAttention())


def fixed() -> nn.Module:
    class SlidingWindowCache(_SlidingWindowCacheBase):
        def _sliding_update(self, out, states, cache_position):
            slicing = torch.ones(self.max_cache_len, dtype=torch.long, device=states.device).cumsum(0)
            to_shift = cache_position > self.max_cache_len - 1
            cache_position = cache_position.clamp(0, self.max_cache_len - 1)
            indices = (slicing + to_shift[-1].int() - 1) % self.max_cache_len

            out = out[:, :, indices]
            out[:, :, cache_position] = states
            return out

    class GemmaAttention(_AttentionLayer):
        cache_class = SlidingWindowCache

    torch.manual_seed(0)
    return _Decoder(GemmaAttention())
