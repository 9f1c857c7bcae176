import math

import torch
import torch.nn as nn


def alibi_slopes(n):
    def pow2(m):
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start * start ** i for i in range(m)]

    if math.log2(n).is_integer():
        return pow2(n)
    m = 2 ** math.floor(math.log2(n))
    return pow2(m) + alibi_slopes(2 * m)[0::2][: n - m]


class AlibiCausalAttention(nn.Module):
    """Causal attention with linear biases and no position embedding.

    ALiBi penalises a key by slope * (i - j). Within one row of the score matrix i is a
    constant and drops out of the softmax, so we only add slope * j, which broadcasts
    over the rows and saves a (heads, T, T) tensor.
    """

    def __init__(self, dim=96, heads=6, max_len=1024):
        super().__init__()
        assert dim % heads == 0
        self.h = heads
        self.dk = dim // heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        slopes = torch.tensor(alibi_slopes(heads)).view(heads, 1, 1)
        ramp = torch.arange(max_len, dtype=torch.float32).view(1, 1, max_len)
        self.register_buffer("ramp", slopes * ramp, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.h, self.dk).transpose(1, 2) for t in self.wqkv(x).chunk(3, dim=-1))
        s = q @ k.transpose(-1, -2) / math.sqrt(self.dk)
        s = s + self.ramp[:, :, :T].to(s.dtype)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        s = s.masked_fill(future, float("-inf"))
        y = s.softmax(-1) @ v
        return self.wo(y.transpose(1, 2).reshape(B, T, C))
