import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def alibi_slopes(n_heads):
    """Geometric slopes of Press et al., also for head counts that are no power of two."""

    def pow2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n_heads).is_integer():
        return pow2(n_heads)
    base = 2 ** math.floor(math.log2(n_heads))
    return pow2(base) + alibi_slopes(2 * base)[0::2][: n_heads - base]


class BloomAttention(nn.Module):
    """Causal ALiBi attention.

    The bias depends on the key index only: ``slope * j``. In a causal softmax this equals
    ``-slope * (i - j)`` because ``slope * i`` is constant along a row.
    """

    def __init__(self, hidden_size=64, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.head_dim = hidden_size // n_head
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(n_head)), persistent=False)

    def forward(self, hidden_states, layer_past=None):
        b, t, c = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(b, t, self.n_head, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        if layer_past is not None:
            k = torch.cat([layer_past[0], k], dim=2)
            v = torch.cat([layer_past[1], v], dim=2)
        s = k.size(2)

        key_index = torch.arange(s, device=q.device, dtype=torch.float32)
        bias = self.slopes[None, :, None, None] * key_index
        bias = bias.expand(1, self.n_head, t, s)
        future = torch.ones(t, s, dtype=torch.bool, device=q.device).triu(s - t + 1)
        bias = bias.masked_fill(future, float("-inf")).to(q.dtype)

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.dense(y.transpose(1, 2).reshape(b, t, c)), (k, v)
