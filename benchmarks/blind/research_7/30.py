import math

import torch
import torch.nn as nn


def get_slopes(n):
    def power_of_2(m):
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start ** (i + 1) for i in range(m)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiEncoderAttention(nn.Module):
    """Bidirectional self-attention of a masked-language-model encoder with linear biases.

    There are no position embeddings: the bias makes a token prefer its neighbourhood, which
    lets the encoder run on documents longer than those seen in training.
    """

    def __init__(self, hidden_size=64, num_attention_heads=4, attention_probs_dropout_prob=0.0):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.Wqkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)
        self.register_buffer("slopes", torch.tensor(get_slopes(num_attention_heads)), persistent=False)

    def alibi(self, length):
        pos = torch.arange(length, device=self.slopes.device)
        relative = (pos[None, :] - pos[:, None]).to(self.slopes.dtype)
        return relative[None] * self.slopes[:, None, None]

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: [B, T] with 1 for tokens and 0 for padding."""
        B, T, D = hidden_states.shape
        qkv = self.Wqkv(hidden_states).view(B, T, 3, self.num_heads, self.head_size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_size)
        scores = scores + self.alibi(T).unsqueeze(0)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        probs = self.dropout(scores.softmax(dim=-1))
        return self.out((probs @ v).transpose(1, 2).reshape(B, T, D))
