import math

import torch
from torch import nn


class SinkAttention(nn.Module):
    """Causal attention with a learned sink logit per head, optionally over a sliding window.

    The sink takes part in the softmax and has no value, so that the weights of a row over the
    real tokens sum to less than one and a head is able to switch itself off.
    sliding_window counts the token itself; 0 means no window.
    """

    def __init__(self, hidden_size: int = 128, num_heads: int = 4, sliding_window: int = 0):
        super().__init__()
        assert hidden_size % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.sliding_window = sliding_window
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, n_tokens, width = x.shape
        q, k, v = self.qkv(x).view(bsz, n_tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        mask = torch.triu(x.new_full((n_tokens, n_tokens), -float("inf")), diagonal=1)
        if self.sliding_window > 0:
            mask = mask + torch.tril(mask.new_full((n_tokens, n_tokens), -float("inf")), diagonal=-self.sliding_window)

        qk = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim) + mask
        sinks = self.sinks.view(1, -1, 1, 1).expand(bsz, -1, n_tokens, 1)
        w = torch.softmax(torch.cat([qk, sinks], dim=-1), dim=-1)[..., :-1]
        y = torch.matmul(w, v).transpose(1, 2).reshape(bsz, n_tokens, width)
        return self.out(y)
