"""A packed projection laid out per head as [q k v] is split as three contiguous blocks.

awslabs/slapo #46 (2023)
https://github.com/awslabs/slapo/pull/46
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class FusedQKVAttention(nn.Module):
        """GPT-NeoX / Megatron attention, causal; forward(hidden_states), (B, T, C).

        The rows of query_key_value.weight are laid out head by head: the query, key and value rows of head 0, then
        those of head 1, and so on ([num_heads, 3, head_size]).
        """

        def __init__(self, hidden_size=32, num_attention_heads=4):
            super().__init__()
            self.num_attention_heads, self.head_size = num_attention_heads, hidden_size // num_attention_heads
            self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
            self.dense = nn.Linear(hidden_size, hidden_size)

        def forward(self, hidden_states):
            B, T, C = hidden_states.shape
            qkv = self.query_key_value(hidden_states)
            if rev == 1:
                q, k, v = (t.view(B, T, self.num_attention_heads, self.head_size) for t in qkv.chunk(3, dim=-1))
            else:
                q, k, v = qkv.view(B, T, self.num_attention_heads, 3 * self.head_size).chunk(3, dim=-1)
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
            return self.dense(y.transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return FusedQKVAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
