"""The fallback path calls the prefill kernel with its default scale of 1.0, so scores are never divided by sqrt(head_dim).

mlc-ai/mlc-llm #3426 (2026)
https://github.com/mlc-ai/mlc-llm/pull/3426
"""
import math
import torch
import torch.nn as nn


def _attention_sequence_prefill(q, k, v, causal=0, sm_scale=1.0):
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * sm_scale
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v)


def _build(rev):
    def attention(q, k, v):
        """softmax(q k^T / sqrt(head_dim)) v, tensors (B, T, H, D)."""
        if rev == 1:
            return _attention_sequence_prefill(q, k, v)
        return _attention_sequence_prefill(q, k, v, sm_scale=1.0 / math.sqrt(q.shape[-1]))

    class BertLayer(nn.Module):
        """Post-norm encoder layer; forward(hidden_states), (B, T, C), bidirectional, scaled dot-product attention."""

        def __init__(self, hidden_size=64, num_attention_heads=4):
            super().__init__()
            self.num_attention_heads = num_attention_heads
            self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
            self.dense = nn.Linear(hidden_size, hidden_size)
            self.LayerNorm = nn.LayerNorm(hidden_size)
            self.intermediate = nn.Linear(hidden_size, 128)
            self.output = nn.Linear(128, hidden_size)
            self.OutputNorm = nn.LayerNorm(hidden_size)

        def forward(self, hidden_states):
            B, T, C = hidden_states.shape
            q, k, v = self.qkv(hidden_states).view(B, T, 3, self.num_attention_heads, -1).unbind(2)
            h = self.LayerNorm(hidden_states + self.dense(attention(q, k, v).reshape(B, T, C)))
            return self.OutputNorm(h + self.output(nn.functional.gelu(self.intermediate(h))))

    torch.manual_seed(0)
    return BertLayer()


def broken():
    return _build(1)


def fixed():
    return _build(2)
