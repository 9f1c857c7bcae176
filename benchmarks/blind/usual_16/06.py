import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def get_slopes(n):
    def power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_two(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_two(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiCausalAttention(nn.Module):
    """Causal attention with linear biases (Press et al., 2022), no position embeddings needed."""

    def __init__(self, d_model: int = 64, n_heads: int = 8, bias: bool = False):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)
        self.register_buffer("slopes", torch.tensor(get_slopes(n_heads)), persistent=False)

    def build_bias(self, T, device, dtype):
        pos = torch.arange(T, device=device)
        distance = (pos[:, None] - pos[None, :]).to(dtype)
        bias = self.slopes.to(dtype)[:, None, None] * distance
        future = torch.ones(T, T, dtype=torch.bool, device=device).triu(1)
        return bias.masked_fill(future, float("-inf")).unsqueeze(0)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.Wqkv(x).view(B, T, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.build_bias(T, x.device, q.dtype))
        return self.out_proj(y.transpose(1, 2).contiguous().view(B, T, C))
