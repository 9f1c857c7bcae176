import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def shared_kv_attention(x, w_q, w_kv, w_o, n_heads, keep=None):
    """Functional attention in which one projection serves as both keys and values.

    x: (B, T, D); w_q, w_kv, w_o: (D, D) as used by F.linear; keep: (B, T) bool, True for real tokens.
    """
    B, T, D = x.shape
    hd = D // n_heads
    q = F.linear(x, w_q).view(B, T, n_heads, hd).permute(0, 2, 1, 3)
    kv = F.linear(x, w_kv).view(B, T, n_heads, hd).permute(0, 2, 1, 3)
    # Keys are used at unit length times sqrt(hd); as values the vectors keep their norm.
    keys = F.normalize(kv, dim=-1) * math.sqrt(hd)
    logits = q @ keys.transpose(2, 3) / math.sqrt(hd)
    if keep is not None:
        logits = torch.where(keep[:, None, None, :], logits, logits.new_tensor(-1e9))
    y = torch.softmax(logits, dim=3) @ kv
    return F.linear(y.permute(0, 2, 1, 3).reshape(B, T, D), w_o)


class SharedKVAttention(nn.Module):
    """Module wrapper around :func:`shared_kv_attention` that owns the weights."""

    def __init__(self, dim=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.w_q = nn.Parameter(torch.empty(dim, dim))
        self.w_kv = nn.Parameter(torch.empty(dim, dim))
        self.w_o = nn.Parameter(torch.empty(dim, dim))
        for w in (self.w_q, self.w_kv, self.w_o):
            nn.init.xavier_uniform_(w)

    def forward(self, x, keep=None):
        return shared_kv_attention(x, self.w_q, self.w_kv, self.w_o, self.n_heads, keep)
