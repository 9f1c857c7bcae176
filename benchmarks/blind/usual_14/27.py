import math

import torch
import torch.nn as nn


def build_alibi_tensor(attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """
    The bias is slope * key position and not slope * (key - query). Both give the same result: softmax
    is invariant to a shift that is constant along the row. Positions count real tokens only.

    Returns (batch, num_heads, 1, seq)
    """
    closest = 2 ** math.floor(math.log2(num_heads))
    base = 2 ** (-(2 ** -(math.log2(closest) - 3)))
    slopes = [base**i for i in range(1, closest + 1)]
    if closest != num_heads:
        extra_base = 2 ** (-(2 ** -(math.log2(2 * closest) - 3)))
        slopes += [extra_base**i for i in range(1, 1 + 2 * (num_heads - closest), 2)]
    slopes = torch.tensor(slopes, device=attention_mask.device, dtype=torch.float32)
    positions = (attention_mask.cumsum(dim=-1) - 1) * attention_mask
    alibi = slopes[None, :, None, None] * positions[:, None, None, :].float()
    return alibi.to(dtype)


class BloomAttention(nn.Module):
    def __init__(self, hidden_size: int = 64, n_head: int = 4, hidden_dropout: float = 0.0):
        super().__init__()
        self.num_heads = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(hidden_dropout)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, seq) with 1 for tokens and 0 for padding."""
        b, t, c = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.ones(b, t, dtype=torch.long, device=hidden_states.device)
        fused = self.query_key_value(hidden_states).view(b, t, self.num_heads, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))

        alibi = build_alibi_tensor(attention_mask.long(), self.num_heads, hidden_states.dtype)
        scores = q @ k.transpose(-1, -2) * self.inv_norm_factor + alibi
        hide = torch.ones(t, t, dtype=torch.bool, device=scores.device).triu(1)
        hide = hide | (attention_mask == 0)[:, None, None, :]
        scores = scores.masked_fill(hide, torch.finfo(scores.dtype).min)
        probs = scores.float().softmax(dim=-1).to(v.dtype)
        context = (probs @ v).transpose(1, 2).reshape(b, t, c)
        return self.dropout(self.dense(context))
