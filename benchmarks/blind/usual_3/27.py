import math

import torch
import torch.nn as nn


class StrictPastAttention(nn.Module):
    """Attention over the strict past inside a window.

    Position i attends to positions i - window ... i - 1, never to itself: the layer is used
    to predict x_i from what came before. Position 0 has no past and its context vector is
    zero, so there only the bias of the output layer remains.
    """

    def __init__(self, dim=32, num_heads=4, window=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def band(self, n, device):
        i = torch.arange(n, device=device)
        gap = i[:, None] - i[None, :]
        return (gap >= 1) & (gap <= self.window)

    def forward(self, x):
        b, n, dim = x.shape
        q, k, v = (
            f(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        band = self.band(n, x.device)
        scores = scores.masked_fill(~band, torch.finfo(scores.dtype).min)
        # the product clears the uniform row that the softmax gives where nothing is allowed
        weights = scores.softmax(dim=-1) * band
        return self.o((weights @ v).transpose(1, 2).reshape(b, n, dim))
