import torch
import torch.nn as nn
from torch.nn import functional as F


class GPTAttention(nn.Module):
    """nanoGPT attention with an optional cache.

    The kernel aligns ``is_causal`` to the top left corner, so the flag is used for a fresh
    prompt only; a single new token sees everything and needs no mask.
    """

    def __init__(self, n_embd=64, n_head=4, dropout=0.0, bias=True):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)
        self.n_head = n_head
        self.n_embd = n_embd
        self.dropout = dropout

    def forward(self, x, past=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        mask, is_causal = None, False
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
            if T > 1:
                S = k.size(2)
                mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        else:
            is_causal = T > 1

        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, is_causal=is_causal)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y)), (k, v)
