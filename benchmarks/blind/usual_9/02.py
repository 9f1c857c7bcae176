import math

import torch
from torch import nn
from torch.nn import functional as F


def get_slopes(n_heads):
    """Geometric head slopes, with the usual interpolation when n_heads is not a power of two."""
    closest = 2 ** math.floor(math.log2(n_heads))
    base = 2.0 ** (-(2.0 ** -(math.log2(closest) - 3)))
    slopes = [base ** (i + 1) for i in range(closest)]
    if closest != n_heads:
        extra_base = 2.0 ** (-(2.0 ** -(math.log2(2 * closest) - 3)))
        remaining = min(closest, n_heads - closest)
        slopes += [extra_base ** (2 * i + 1) for i in range(remaining)]
    return torch.tensor(slopes, dtype=torch.float32)


def build_alibi(attention_mask, slopes):
    """
    Returns a tensor of shape (batch * heads, 1, key_length).

    The bias of a pair is -slope * (i - j). The term in i is the same for all the keys of one query, and
    softmax does not see such a constant, so only slope * j is kept and it broadcasts over the queries.
    Positions are counted over real tokens, which makes left padding harmless.
    """
    batch, length = attention_mask.shape
    positions = (attention_mask.long().cumsum(dim=-1) - 1) * attention_mask.long()
    alibi = slopes[None, :, None] * positions[:, None, :].float()
    return alibi.reshape(batch * slopes.numel(), 1, length)


class BloomStyleAttention(nn.Module):
    def __init__(self, hidden_size=256, n_head=8, attention_dropout=0.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.n_head = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.register_buffer("slopes", get_slopes(n_head), persistent=False)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, length) with 1 for tokens and 0 for padding."""
        b, t, _ = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.ones(b, t, dtype=torch.long, device=hidden_states.device)

        fused = self.query_key_value(hidden_states)
        fused = fused.view(b, t, self.n_head, 3, self.head_dim)
        q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]

        q = q.transpose(1, 2).reshape(b * self.n_head, t, self.head_dim)
        k = k.permute(0, 2, 3, 1).reshape(b * self.n_head, self.head_dim, t)
        v = v.transpose(1, 2).reshape(b * self.n_head, t, self.head_dim)

        alibi = build_alibi(attention_mask, self.slopes).to(q.dtype)
        scores = torch.baddbmm(alibi.expand(-1, t, -1), q, k, beta=1.0, alpha=self.inv_norm_factor)
        scores = scores.view(b, self.n_head, t, t)

        causal = torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
        allowed = causal[None, None] & attention_mask[:, None, None, :].bool()
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        probs = self.attention_dropout(probs).view(b * self.n_head, t, t)
        context = torch.bmm(probs, v).view(b, self.n_head, t, self.head_dim)
        context = context.transpose(1, 2).reshape(b, t, self.hidden_size)
        return self.dense(context)
