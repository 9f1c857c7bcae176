import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalCausalAttention(nn.Module):
    """Sliding-window causal attention computed in blocks.

    Every token attends to itself and to the ``window - 1`` tokens before it. The
    sequence is cut into blocks of ``window`` tokens; a block of queries sees its own
    keys and those of the block before.
    """

    def __init__(self, dim=128, num_heads=4, window=8, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def look_back(blocks):
        previous = F.pad(blocks, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        return torch.cat((previous, blocks), dim=3)

    def forward(self, x):
        B, T, C = x.shape
        w = self.window
        pad = -T % w
        q, k, v = self.qkv(F.pad(x, (0, 0, 0, pad))).chunk(3, dim=-1)
        n_blocks = (T + pad) // w

        def to_blocks(t):
            return t.view(B, n_blocks, w, self.num_heads, self.head_dim).permute(0, 3, 1, 2, 4)

        q, k, v = to_blocks(q), to_blocks(k), to_blocks(v)
        k, v = self.look_back(k), self.look_back(v)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        i = torch.arange(w, device=x.device)[:, None] + w
        j = torch.arange(2 * w, device=x.device)[None, :]
        visible = (j <= i) & (i - j < w)
        scores = scores.masked_fill(~visible, float("-inf"))
        probs = self.dropout(F.softmax(scores, dim=-1))

        out = (probs @ v).permute(0, 2, 3, 1, 4).reshape(B, n_blocks * w, C)
        return self.proj(out[:, :T])
