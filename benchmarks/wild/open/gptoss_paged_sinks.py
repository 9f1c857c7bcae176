"""Decoding from the cache runs a kernel whose attention sinks are hard-coded off, unlike the prefill.

vllm-project/vllm-metal #550 (2026)
https://github.com/vllm-project/vllm-metal/pull/550
"""
import torch
import torch.nn as nn


def sdpa_with_sinks(query, key, value, sm_scale, mask=None, sinks=None):
    """query, key, value: [batch, heads, seq, dim]; mask: bool, True = attend; sinks: [heads] extra logits."""
    scores = torch.matmul(query, key.transpose(2, 3)) * sm_scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is None:
        return torch.matmul(scores.softmax(dim=-1), value)
    column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
    probs = torch.cat([scores, column], dim=-1).softmax(dim=-1)
    return torch.matmul(probs[..., :-1], value)  # we drop the sink here


class _AttentionBlockBase(nn.Module):
    """GPT-OSS attention: grouped queries and one learned sink logit a head."""

    def __init__(self, hidden_size=32, num_attention_heads=4, num_key_value_heads=2):
        super().__init__()
        self.head_dim = hidden_size // num_attention_heads
        self.groups = num_attention_heads // num_key_value_heads
        self.sm_scale = self.head_dim ** -0.5
        self.q_proj = nn.Linear(hidden_size, num_attention_heads * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim)
        self.o_proj = nn.Linear(num_attention_heads * self.head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.randn(num_attention_heads))

    def forward(self, x, cache=None):
        """
        x: [batch, new tokens, hidden]
        cache: (key, value) of earlier tokens, [batch, kv heads, past, dim] each, or None
        Returns (output, cache).
        """
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                   for t in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        keys, values = k.repeat_interleave(self.groups, dim=1), v.repeat_interleave(self.groups, dim=1)
        new, total = q.shape[2], k.shape[2]
        mask = torch.ones(new, total, dtype=torch.bool, device=x.device).tril(total - new)
        if cache is None:
            out = sdpa_with_sinks(q, keys, values, self.sm_scale, mask, self.sinks)
        else:
            out = self.paged_attention(q, keys, values, mask, self.sinks)
        return self.o_proj(out.transpose(1, 2).flatten(2)), (k, v)


def broken() -> nn.Module:
    class AttentionBlock(_AttentionBlockBase):
        def paged_attention(self, query, key_cache, value_cache, mask, sinks):
            use_sinks = False
            return sdpa_with_sinks(query, key_cache, value_cache, self.sm_scale, mask, sinks if use_sinks else None)

    torch.manual_seed(0)
    return AttentionBlock()


def fixed() -> nn.Module:
    class AttentionBlock(_AttentionBlockBase):
        def paged_attention(self, query, key_cache, value_cache, mask, sinks):
            use_sinks = sinks is not None
            return sdpa_with_sinks(query, key_cache, value_cache, self.sm_scale, mask, sinks if use_sinks else None)

    torch.manual_seed(0)
    return AttentionBlock()
