import math

import torch
import torch.nn as nn


def get_slopes(n: int):
    def power_of_2(m):
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start * start**i for i in range(m)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiCausalAttention(nn.Module):
    """Causal attention with linear biases, in the form used by BLOOM.

    The bias is slope * j and depends on the key position only. It differs from the bias
    -slope * (i - j) of the paper by slope * i, a constant of the row, which the softmax cancels.
    """

    def __init__(self, hidden_size=96, n_head=6):
        super().__init__()
        self.n_head = n_head
        self.head_dim = hidden_size // n_head
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.register_buffer("slopes", torch.tensor(get_slopes(n_head)), persistent=False)

    def build_alibi(self, attention_mask):
        positions = (attention_mask.cumsum(dim=-1) - 1) * attention_mask
        return self.slopes[None, :, None, None] * positions[:, None, None, :]

    def forward(self, x, attention_mask=None):
        """attention_mask: (batch, seq), 1 for tokens and 0 for padding on either side."""
        b, n, c = x.shape
        if attention_mask is None:
            attention_mask = torch.ones(b, n, device=x.device, dtype=torch.long)
        q, k, v = self.query_key_value(x).view(b, n, self.n_head, 3, self.head_dim).unbind(3)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))

        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        scores = scores + self.build_alibi(attention_mask).to(scores.dtype)
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        allowed = allowed & attention_mask[:, None, None, :].bool()
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        out = scores.softmax(dim=-1) @ v
        return self.dense(out.transpose(1, 2).reshape(b, n, c))
