import math

import torch
from torch import nn


class LongformerStyleSelfAttention(nn.Module):
    """Sliding window plus global tokens, written densely (for tests and short inputs).

    attention_mask: [B, T], the three-valued mask of Longformer:
        0 = padding, 1 = local attention, 2 = global attention.

    Ordinary queries read the ``window`` tokens on either side and all global tokens,
    with the local projections. Global queries read everything, with projections of
    their own for query, key and value. Rows of padding come out as zero.
    """

    def __init__(self, hidden_size=64, num_heads=4, window=3, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.window = window
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.query_global = nn.Linear(hidden_size, hidden_size)
        self.key_global = nn.Linear(hidden_size, hidden_size)
        self.value_global = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

    def _attend(self, q, k, v, blocked):
        scores = torch.matmul(q / math.sqrt(self.head_dim), k.transpose(-1, -2))
        scores = scores.float().masked_fill(blocked, torch.finfo(torch.float32).min)
        probs = torch.softmax(scores, dim=-1).type_as(q)
        return torch.matmul(self.dropout(probs), v)

    def forward(self, hidden_states, attention_mask=None):
        b, t, d = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.ones(b, t, dtype=torch.long, device=hidden_states.device)
        is_pad = attention_mask == 0
        is_global = attention_mask == 2

        idx = torch.arange(t, device=hidden_states.device)
        near = (idx[:, None] - idx[None, :]).abs() <= self.window
        blocked = ~(near[None] | is_global[:, None, :]) | is_pad[:, None, :]

        local = self._attend(
            self._heads(self.query(hidden_states)),
            self._heads(self.key(hidden_states)),
            self._heads(self.value(hidden_states)),
            blocked[:, None],
        )
        full = self._attend(
            self._heads(self.query_global(hidden_states)),
            self._heads(self.key_global(hidden_states)),
            self._heads(self.value_global(hidden_states)),
            is_pad[:, None, None, :],
        )
        out = torch.where(is_global[:, None, :, None], full, local)
        out = out.masked_fill(is_pad[:, None, :, None], 0.0)
        return out.transpose(1, 2).reshape(b, t, d)
