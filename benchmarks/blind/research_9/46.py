from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class LongformerLocalAttention(nn.Module):
    """Sliding-window self attention for long documents; cost linear in the length.

    Every token sees the ``window`` tokens on either side and itself. The sequence is cut into blocks of
    ``window`` tokens, each of which is compared with itself and with its two neighbours.

    Args:
        hidden_states: [B, T, C], any T
        attention_mask: [B, T], 1 for tokens and 0 for padding
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, window: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.window = window
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        return x.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, T, C = hidden_states.shape
        w = self.window
        extra = (-T) % w
        blocks = (T + extra) // w

        q = self._heads(self.query(hidden_states)) * self.head_dim ** -0.5
        k = self._heads(self.key(hidden_states))
        v = self._heads(self.value(hidden_states))

        q = F.pad(q, (0, 0, 0, extra)).reshape(B, self.num_heads, blocks, w, self.head_dim)
        # [B, H, blocks, head_dim, 3w]
        k = F.pad(k, (0, 0, w, w + extra)).unfold(2, 3 * w, w)
        v = F.pad(v, (0, 0, w, w + extra)).unfold(2, 3 * w, w)

        if attention_mask is None:
            valid = torch.ones(B, T, dtype=torch.bool, device=q.device)
        else:
            valid = attention_mask.bool()
        valid = F.pad(valid, (w, w + extra), value=True).unfold(1, 3 * w, w)

        offset = torch.arange(3 * w, device=q.device)[None, :] - w - torch.arange(w, device=q.device)[:, None]
        allowed = (offset.abs() <= w)[None, None, None] & valid[:, None, :, None, :]

        scores = torch.matmul(q, k).masked_fill(~allowed, torch.finfo(q.dtype).min)
        probs = self.dropout(scores.softmax(dim=-1))
        out = torch.matmul(probs, v.transpose(-1, -2))
        out = out.reshape(B, self.num_heads, blocks * w, self.head_dim)[:, :, :T]
        return self.output(out.transpose(1, 2).reshape(B, T, C))
