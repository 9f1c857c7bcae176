"""The cached-prefix kernel returns a base-2 logsumexp that is merged as if it were a natural one.

sgl-project/sglang #40903 (2026)
https://github.com/sgl-project/sglang/issues/40903
"""
import math

import torch
import torch.nn as nn


def ragged_prefill(q, k, v, scale):
    """Attention over a prefix, nothing masked. Returns (out, lse) with lse in base 2: log2(sum(exp(scores)))."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    return scores.softmax(-1) @ v, torch.logsumexp(scores, dim=-1) / math.log(2)


def flash_attn_extend(q, k, v, scale):
    """Causal attention over the new tokens. Returns (out, lse) with lse = ln(sum(exp(scores)))."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~causal, float("-inf"))
    return scores.softmax(-1) @ v, torch.logsumexp(scores, dim=-1)


def merge_state_v2(prefix_output, prefix_lse, suffix_output, suffix_lse):
    """Merge two partial attention outputs by their natural-log logsumexp."""
    lse = torch.logaddexp(prefix_lse, suffix_lse)
    return (prefix_output * (prefix_lse - lse).exp().unsqueeze(-1)
            + suffix_output * (suffix_lse - lse).exp().unsqueeze(-1))


class _AttentionBase(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.scaling = self.head_dim ** -0.5
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states, past_key_value=None):
        """
        hidden_states: [batch, new tokens, hidden]
        past_key_value: (key, value) of the cached prefix, each [batch, heads, prefix, head_dim], or None
        Returns the output and the extended (key, value).
        """
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
                   for t in self.qkv_proj(hidden_states).chunk(3, dim=-1))
        out = self.forward_extend(q, k, v, past_key_value)
        if past_key_value is not None:
            k, v = torch.cat((past_key_value[0], k), dim=2), torch.cat((past_key_value[1], v), dim=2)
        return self.o_proj(out.transpose(1, 2).flatten(2)), (k, v)


def broken() -> nn.Module:
    class ChunkedPrefixAttention(_AttentionBase):
        def forward_extend(self, q, k, v, past_key_value):
            accum_output, accum_lse = flash_attn_extend(q, k, v, self.scaling)
            if past_key_value is None:
                return accum_output
            output, lse = ragged_prefill(q, *past_key_value, self.scaling)
            return merge_state_v2(output, lse, accum_output, accum_lse)

    torch.manual_seed(0)
    return ChunkedPrefixAttention()


def fixed() -> nn.Module:
    class ChunkedPrefixAttention(_AttentionBase):
        def forward_extend(self, q, k, v, past_key_value):
            accum_output, accum_lse = flash_attn_extend(q, k, v, self.scaling)
            if past_key_value is None:
                return accum_output
            output, lse = ragged_prefill(q, *past_key_value, self.scaling)
            return merge_state_v2(output, lse * math.log(2), accum_output, accum_lse)

    torch.manual_seed(0)
    return ChunkedPrefixAttention()
