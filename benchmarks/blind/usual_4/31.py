import math

import torch
import torch.nn as nn


class GlobalLocalAttention(nn.Module):
    """Local attention with a few global tokens.

    A token attends to its neighbours at most ``window`` positions away. Tokens marked in
    ``global_mask`` attend to the whole sequence and the whole sequence attends to them, so that
    information crosses the document in two layers.

    Args of forward:
        hidden_states: (B, T, D)
        attention_mask: (B, T), 1 for tokens, 0 for padding
        global_mask: (B, T), 1 for global tokens
    """

    def __init__(self, dim=64, num_heads=4, window=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _build_mask(self, T, attention_mask, global_mask, device):
        pos = torch.arange(T, device=device)
        allowed = ((pos[:, None] - pos[None, :]).abs() <= self.window).unsqueeze(0)
        if global_mask is not None:
            allowed = allowed | global_mask.bool()[:, :, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, :]
        return allowed.unsqueeze(1)

    def forward(self, hidden_states, attention_mask=None, global_mask=None):
        B, T, D = hidden_states.shape

        def split(x):
            return x.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

        q = split(self.query(hidden_states)) / math.sqrt(self.head_dim)
        k = split(self.key(hidden_states))
        v = split(self.value(hidden_states))

        scores = q @ k.transpose(-1, -2)
        allowed = self._build_mask(T, attention_mask, global_mask, scores.device)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        probs = self.dropout(torch.softmax(scores, dim=-1))
        context = (probs @ v).transpose(1, 2).reshape(B, T, D)
        return self.output(context)
