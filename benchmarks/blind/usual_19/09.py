import math

import torch
import torch.nn as nn


def get_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiSelfAttention(nn.Module):
    """Causal self-attention with linear biases (ALiBi, Press et al., 2022) in place of position embeddings."""

    def __init__(self, d_model: int = 64, n_heads: int = 8, attn_pdrop: float = 0.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.attn_drop = nn.Dropout(attn_pdrop)
        self.register_buffer("slopes", torch.tensor(get_slopes(n_heads)).view(n_heads, 1, 1), persistent=False)

    def build_bias(self, seq_len, device):
        pos = torch.arange(seq_len, device=device)
        distance = (pos[:, None] - pos[None, :]).clamp(min=0)
        return self.slopes * distance

    def forward(self, x):
        b, s, c = x.size()
        q, k, v = self.Wqkv(x).chunk(3, dim=-1)
        q = q.view(b, s, self.n_heads, self.d_head).transpose(1, 2)
        k = k.view(b, s, self.n_heads, self.d_head).transpose(1, 2)
        v = v.view(b, s, self.n_heads, self.d_head).transpose(1, 2)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        scores = scores + self.build_bias(s, x.device).to(scores.dtype)

        causal = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(causal, torch.finfo(scores.dtype).min)

        weights = self.attn_drop(torch.softmax(scores, dim=-1))
        out = (weights @ v).transpose(1, 2).contiguous().view(b, s, c)
        return self.out_proj(out)
