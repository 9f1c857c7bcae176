import math

import torch
import torch.nn as nn


def get_slopes(n_heads):
    def pow2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n_heads).is_integer():
        return pow2(n_heads)
    closest = 2 ** math.floor(math.log2(n_heads))
    return pow2(closest) + get_slopes(2 * closest)[0::2][: n_heads - closest]


class AlibiAttention(nn.Module):
    """
    Causal self-attention with ALiBi.

    As in BLOOM the bias is built from the key position alone, slope * j, shape (1, heads, 1, k).
    The distance form is slope * (j - i); the two differ by slope * i, which is the same for all
    keys of a row and drops out of the softmax.
    """

    def __init__(self, hidden_size=64, n_heads=4, max_len=512):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = hidden_size // n_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        slopes = torch.tensor(get_slopes(n_heads))
        alibi = slopes.view(1, n_heads, 1, 1) * torch.arange(max_len).view(1, 1, 1, max_len)
        self.register_buffer("alibi", alibi, persistent=False)

    def forward(self, hidden_states, layer_past=None):
        b, q_len, _ = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(b, q_len, self.n_heads, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        if layer_past is not None:
            k = torch.cat((layer_past[0], k), dim=2)
            v = torch.cat((layer_past[1], v), dim=2)
        k_len = k.shape[2]

        scores = q @ k.transpose(-1, -2) * self.inv_norm_factor + self.alibi[..., :k_len]
        blocked = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device).triu(k_len - q_len + 1)
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        probs = scores.softmax(dim=-1)

        context = (probs @ v).transpose(1, 2).reshape(b, q_len, -1)
        return self.dense(context), (k, v)
