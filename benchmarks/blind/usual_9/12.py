import math

import torch
import torch.nn as nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    """nanoGPT attention under muP.

    muP asks for attention logits of q.k / d instead of q.k / sqrt(d), so that the logits stay O(1) when the head
    widens and q and k become correlated. The constant sqrt(base_head_dim) in front makes the base model, with
    head_dim == base_head_dim, identical to the standard parametrisation.
    """

    def __init__(self, n_embd=256, n_head=4, base_head_dim=32, dropout=0.0, bias=False):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)
        self.n_head = n_head
        self.n_embd = n_embd
        self.dropout = dropout
        self.softmax_scale = math.sqrt(base_head_dim) / (n_embd // n_head)
        # muP: start from uniform attention
        nn.init.normal_(self.c_attn.weight, std=n_embd ** -0.5)
        with torch.no_grad():
            self.c_attn.weight[:n_embd].zero_()

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=None,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            scale=self.softmax_scale,
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))
