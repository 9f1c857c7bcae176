import torch
import torch.nn as nn
import torch.nn.functional as F


class MuPSelfAttention(nn.Module):
    """Causal self-attention in maximal update parametrisation.

    muP asks for logits q.k / d_head instead of q.k / sqrt(d_head), so that they stay O(1)
    once q and k are correlated. ``attn_mult`` is the tunable multiplier (sqrt(base d_head) recovers
    the standard scale at the base width). Queries start at zero, i.e. attention starts uniform.
    """

    def __init__(self, width=64, num_heads=4, attn_mult=1.0, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = width // num_heads
        self.attn_scale = attn_mult / self.head_dim
        self.dropout = dropout
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        for lin in (self.k, self.v, self.o):
            nn.init.normal_(lin.weight, std=width ** -0.5)
        nn.init.zeros_(self.q.weight)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (
            lin(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2) for lin in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(
            q, k, v,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.attn_scale,
        )
        return self.o(y.transpose(1, 2).reshape(b, t, w))
