import math

import torch
from torch import nn


class LongformerSelfAttention(nn.Module):
    """Local + global attention of Longformer, dense reference implementation.

    attention_mask: (B, N), the convention of the original code
        <0: padding, no attention
         0: local attention
        >0: global attention: sees every token and is seen by every token

    Every token sees ``attention_window`` tokens on either side. Global tokens have their own projections for
    what they look at. Outputs at padding are zero.
    """

    def __init__(self, hidden_size=64, num_attention_heads=4, attention_window=8, dropout=0.1):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.one_sided = attention_window
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.query_global = nn.Linear(hidden_size, hidden_size)
        self.key_global = nn.Linear(hidden_size, hidden_size)
        self.value_global = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def _attend(self, q, k, v, allowed):
        b, n, c = q.shape
        q, k, v = (t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2)
        scores = scores.masked_fill(~allowed.unsqueeze(1), torch.finfo(scores.dtype).min)
        probs = self.dropout(scores.softmax(dim=-1))
        return (probs @ v).transpose(1, 2).reshape(b, n, c)

    def forward(self, hidden_states, attention_mask=None):
        b, n, _ = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.zeros(b, n, device=hidden_states.device)
        is_pad = attention_mask < 0
        is_global = attention_mask > 0

        pos = torch.arange(n, device=hidden_states.device)
        band = (pos[:, None] - pos[None, :]).abs() <= self.one_sided
        local_allowed = (band[None] | is_global[:, None, :]) & ~is_pad[:, None, :]
        global_allowed = (~is_pad)[:, None, :].expand(b, n, n)

        scale = 1.0 / math.sqrt(self.head_dim)
        out = self._attend(self.query(hidden_states) * scale, self.key(hidden_states),
                           self.value(hidden_states), local_allowed)
        if is_global.any():
            out_global = self._attend(self.query_global(hidden_states) * scale, self.key_global(hidden_states),
                                      self.value_global(hidden_states), global_allowed)
            out = torch.where(is_global.unsqueeze(-1), out_global, out)
        return out.masked_fill(is_pad.unsqueeze(-1), 0.0)
