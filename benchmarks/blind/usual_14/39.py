import torch
import torch.nn as nn
import torch.nn.functional as F


class MuPAttention(nn.Module):
    """Causal attention for maximal update parametrization.

    Under muP the logits are divided by d_head and not by sqrt(d_head); `attn_mult` is the tunable
    multiplier, sqrt(base_d_head) by default so that a model with the base head size matches the standard
    parametrization. The query projection starts at zero, which muP recommends: the first forward pass
    therefore averages over the visible positions.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, base_d_head: int = 16, attn_mult: float = None):
        super().__init__()
        self.num_heads = num_heads
        d_head = dim // num_heads
        mult = base_d_head**0.5 if attn_mult is None else attn_mult
        self.scale = mult / d_head
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.q.weight)
        for lin in (self.k, self.v, self.o):
            nn.init.normal_(lin.weight, std=dim**-0.5)

    def forward(self, x):
        b, n, c = x.shape

        def heads(t):
            return t.view(b, n, self.num_heads, -1).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(x)), heads(self.v(x)), is_causal=True, scale=self.scale
        )
        return self.o(y.transpose(1, 2).reshape(b, n, c))
