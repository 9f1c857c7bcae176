"""With a key/value cache the T5 decoder drops its relative position bias, so decoded tokens lose their positions.

NVIDIA/TensorRT-LLM #13870 (2026)
https://github.com/NVIDIA/TensorRT-LLM/pull/13870
"""
import math

import torch
import torch.nn as nn


class _T5SelfAttentionBase(nn.Module):
    """T5 decoder self-attention: causal relative position bias, scores are not scaled."""

    def __init__(self, d_model=32, d_kv=8, num_heads=4, num_buckets=16, max_distance=32):
        super().__init__()
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.num_heads, self.d_kv = num_heads, d_kv
        self.q = nn.Linear(d_model, num_heads * d_kv, bias=False)
        self.k = nn.Linear(d_model, num_heads * d_kv, bias=False)
        self.v = nn.Linear(d_model, num_heads * d_kv, bias=False)
        self.o = nn.Linear(num_heads * d_kv, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)

    def compute_bias(self, query_length, key_length, device=None):
        """Bias (1, heads, query_length, key_length) of the last `query_length` of `key_length` positions."""
        context_position = torch.arange(key_length - query_length, key_length, device=device)[:, None]
        memory_position = torch.arange(key_length, device=device)[None, :]
        distance = (context_position - memory_position).clamp(min=0)
        max_exact = self.num_buckets // 2
        large = max_exact + (torch.log(distance.float().clamp(min=1) / max_exact) / math.log(self.max_distance / max_exact)
                             * (self.num_buckets - max_exact)).long()
        bucket = torch.where(distance < max_exact, distance, large.clamp(max=self.num_buckets - 1))
        return self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)

    def attend(self, query_states, key_states, value_states, position_bias=None):
        scores = torch.matmul(query_states, key_states.transpose(3, 2))
        if position_bias is not None:
            scores = scores + position_bias
        query_length, key_length = scores.shape[-2:]
        causal = torch.ones(query_length, key_length, dtype=torch.bool, device=scores.device).tril(key_length - query_length)
        attn_weights = scores.masked_fill(~causal, float("-inf")).softmax(dim=-1)
        return self.o(torch.matmul(attn_weights, value_states).transpose(1, 2).flatten(2))

    def _shape(self, states):
        return states.unflatten(-1, (self.num_heads, self.d_kv)).transpose(1, 2)


def broken() -> nn.Module:
    class T5DecoderSelfAttention(_T5SelfAttentionBase):
        def forward(self, hidden_states, past_key_value=None):
            """
            hidden_states: [batch, new tokens, d_model]
            past_key_value: (key, value) of earlier tokens or None. Returns (output, (key, value)).
            """
            query_states = self._shape(self.q(hidden_states))
            key_states, value_states = self._shape(self.k(hidden_states)), self._shape(self.v(hidden_states))
            if past_key_value is not None:
                key_states = torch.cat([past_key_value[0], key_states], dim=2)
                value_states = torch.cat([past_key_value[1], value_states], dim=2)
                return self.attend(query_states, key_states, value_states), (key_states, value_states)

            position_bias = self.compute_bias(query_states.shape[2], key_states.shape[2], hidden_states.device)
            return self.attend(query_states, key_states, value_states, position_bias), (key_states, value_states)

    torch.manual_seed(0)
    return T5DecoderSelfAttention()


def fixed() -> nn.Module:
    class T5DecoderSelfAttention(_T5SelfAttentionBase):
        def forward(self, hidden_states, past_key_value=None):
            """
            hidden_states: [batch, new tokens, d_model]
            past_key_value: (key, value) of earlier tokens or None. Returns (output, (key, value)).
            """
            query_states = self._shape(self.q(hidden_states))
            key_states, value_states = self._shape(self.k(hidden_states)), self._shape(self.v(hidden_states))
            if past_key_value is not None:
                key_states = torch.cat([past_key_value[0], key_states], dim=2)
                value_states = torch.cat([past_key_value[1], value_states], dim=2)

            position_bias = self.compute_bias(query_states.shape[2], key_states.shape[2], hidden_states.device)
            return self.attend(query_states, key_states, value_states, position_bias), (key_states, value_states)

    torch.manual_seed(0)
    return T5DecoderSelfAttention()
