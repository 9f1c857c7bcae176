"""Attention of our width-transferable GPT (muP parametrisation)."""
import torch
import torch.nn as nn
from torch.nn import functional as F


class MupCausalSelfAttention(nn.Module):
    """Causal self-attention with muP scaling.

    Under muP the logits are multiplied by ``base_sqrt / d_head`` and not by ``1/sqrt(d_head)``
    (Tensor Programs V, table 8); ``base_sqrt = sqrt(base_head_dim)`` makes both equal at the
    width at which the hyper-parameters were tuned. The query projection starts at zero, so that
    attention is uniform at initialisation.
    """

    def __init__(self, n_embd=128, n_head=4, base_head_dim=16, bias=False, dropout=0.0):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head = n_head
        self.head_dim = n_embd // n_head
        self.attn_scale = base_head_dim**0.5 / self.head_dim
        self.dropout = dropout
        self.c_q = nn.Linear(n_embd, n_embd, bias=bias)
        self.c_kv = nn.Linear(n_embd, 2 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.c_q.weight)
        nn.init.normal_(self.c_kv.weight, std=n_embd**-0.5)
        nn.init.normal_(self.c_proj.weight, std=n_embd**-0.5)

    def forward(self, x):
        B, T, C = x.size()
        q = self.c_q(x).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        k, v = self.c_kv(x).view(B, T, 2, self.n_head, self.head_dim).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            scale=self.attn_scale,
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))
