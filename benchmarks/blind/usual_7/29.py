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


class ALiBiSelfAttention(nn.Module):
    """Causal self-attention with linear biases ("Train Short, Test Long")."""

    def __init__(self, d_model: int = 64, n_heads: int = 8, attn_pdrop: float = 0.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.d_model = d_model
        self.n_heads = n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.register_buffer("slopes", torch.tensor(get_slopes(n_heads)).view(1, n_heads, 1, 1), persistent=False)

    def attn_bias(self, seq_len, device, dtype):
        pos = torch.arange(seq_len, device=device)
        distance = (pos[:, None] - pos[None, :]).abs()
        bias = self.slopes.to(dtype) * distance.to(dtype)
        future = pos[None, :] > pos[:, None]
        return bias.masked_fill(future, torch.finfo(dtype).min)

    def forward(self, x, key_padding_mask=None):
        # key_padding_mask: (B, T), True for tokens
        B, T, _ = x.shape
        q, k, v = self.Wqkv(x).chunk(3, dim=2)
        q = q.view(B, T, self.n_heads, -1).transpose(1, 2)
        k = k.view(B, T, self.n_heads, -1).permute(0, 2, 3, 1)
        v = v.view(B, T, self.n_heads, -1).transpose(1, 2)

        attn_weight = q.matmul(k) / math.sqrt(q.size(-1))
        attn_weight = attn_weight + self.attn_bias(T, x.device, attn_weight.dtype)
        if key_padding_mask is not None:
            min_val = torch.finfo(attn_weight.dtype).min
            attn_weight = attn_weight.masked_fill(~key_padding_mask[:, None, None, :], min_val)

        attn_weight = self.attn_dropout(torch.softmax(attn_weight, dim=-1))
        out = attn_weight.matmul(v).transpose(1, 2).reshape(B, T, self.d_model)
        return self.out_proj(out)
