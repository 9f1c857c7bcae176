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
    """Bidirectional encoder layer with linear position biases, post-norm, GLU feed-forward.

    Tokens far away from the query are penalised in proportion to their distance, with a slope
    per head, which lets the encoder run on longer inputs than it was trained with.
    """

    def __init__(self, hidden_size=64, num_attention_heads=4, intermediate_size=128, dropout=0.1, layer_norm_eps=1e-12):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.Wqkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.norm1 = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.gated = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.wo = nn.Linear(intermediate_size, hidden_size)
        self.norm2 = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("slopes", torch.tensor(get_slopes(num_attention_heads)), persistent=False)

    def build_alibi(self, size):
        position = torch.arange(size, device=self.slopes.device)
        relative = position[None, :] - position[:, None]
        return (self.slopes.view(-1, 1, 1) * relative.float()).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, seq) of 1 (token) and 0 (padding)"""
        b, s, d = hidden_states.shape
        q, k, v = self.Wqkv(hidden_states).view(b, s, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim)
        scores = scores + self.build_alibi(s).to(scores.dtype)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        probs = self.dropout(F.softmax(scores, dim=-1))
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).reshape(b, s, d)

        hidden_states = self.norm1(self.dropout(self.dense(context)) + hidden_states)
        gate, up = self.gated(hidden_states).chunk(2, dim=-1)
        ff = self.wo(self.dropout(F.gelu(gate) * up))
        return self.norm2(ff + hidden_states)
