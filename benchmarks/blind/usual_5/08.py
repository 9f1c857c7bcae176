import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def split_heads(x, num_heads):
    b, n, c = x.shape
    return x.reshape(b, n, num_heads, c // num_heads).permute(0, 2, 1, 3)


def scaled_dot_product(q, k, v, mask=None, dropout_p=0.0, training=False):
    """softmax(q k^T / sqrt(d)) v for (b, h, n, d) tensors; mask is True where a key may be used."""
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    weights = F.dropout(F.softmax(logits, dim=-1), p=dropout_p, training=training)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def multi_head_attention(x, params, num_heads, mask=None, dropout_p=0.0, training=False):
    b, n, c = x.shape
    q = F.linear(x, params["wq"], params["bq"])
    k = F.linear(x, params["wk"], params["bk"])
    v = F.linear(x, params["wv"], params["bv"])
    q = q * (c // num_heads) ** -0.5
    q, k, v = (split_heads(t, num_heads) for t in (q, k, v))
    out = scaled_dot_product(q, k, v, mask, dropout_p, training)
    out = out.permute(0, 2, 1, 3).reshape(b, n, c)
    return F.linear(out, params["wo"], params["bo"])


class FunctionalMHA(nn.Module):
    """Standard scaled dot-product self-attention; the parameters can be replaced per call
    (``fast_weights``), as in MAML's inner loop."""

    def __init__(self, dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.params = nn.ParameterDict()
        for name in ("q", "k", "v", "o"):
            weight = torch.empty(dim, dim)
            nn.init.xavier_uniform_(weight)
            self.params["w" + name] = nn.Parameter(weight)
            self.params["b" + name] = nn.Parameter(torch.zeros(dim))

    def forward(self, x, key_mask=None, fast_weights=None):
        params = self.params if fast_weights is None else fast_weights
        mask = None if key_mask is None else key_mask[:, None, None, :].bool()
        return multi_head_attention(x, params, self.num_heads, mask, self.dropout, self.training)
