import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def get_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiEncoderLayer(nn.Module):
    """Bidirectional encoder layer with symmetric ALiBi: bias[h, i, j] = -slope_h * |i - j|.

    ``attention_mask`` is (B, N) with 1 for tokens and 0 for padding. Post-norm, no positional embeddings.
    """

    def __init__(self, hidden_size=72, num_heads=6, intermediate_size=144, dropout=0.1, max_len=128):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.Wqkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.norm1 = nn.LayerNorm(hidden_size, eps=1e-12)
        self.up = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size)
        self.norm2 = nn.LayerNorm(hidden_size, eps=1e-12)
        self.drop = nn.Dropout(dropout)
        self.p = dropout
        self.rebuild_alibi(max_len)

    def rebuild_alibi(self, size, device=None):
        pos = torch.arange(size, device=device)
        dist = (pos[None, :] - pos[:, None]).abs()
        slopes = torch.tensor(get_slopes(self.num_heads), device=device) * -1
        alibi = slopes[:, None, None] * dist[None]
        self.register_buffer("alibi", alibi.unsqueeze(0), persistent=False)

    def forward(self, x, attention_mask=None):
        B, N, C = x.shape
        if N > self.alibi.size(-1):
            self.rebuild_alibi(N, x.device)
        bias = self.alibi[:, :, :N, :N].to(x.dtype)
        if attention_mask is not None:
            ext = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
            bias = bias + ext

        q, k, v = self.Wqkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        att = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.expand(B, -1, -1, -1), dropout_p=self.p if self.training else 0.0)
        att = att.transpose(1, 2).reshape(B, N, C)
        x = self.norm1(x + self.drop(self.dense(att)))
        gated, plain = self.up(x).chunk(2, dim=-1)
        return self.norm2(x + self.drop(self.down(F.gelu(gated) * plain)))
