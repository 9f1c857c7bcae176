import torch
from torch import nn


class EfficientAttention(nn.Module):
    """Attention with linear complexity (Shen et al., "Efficient Attention").

    Queries get a softmax over their features, keys a softmax over the *sequence*. The
    product k^T v is a set of global context vectors; no n x n matrix is ever formed. Together
    the two softmaxes make every implied row of weights sum to one.

    Input (batch, n, dim), mask (batch, n) with True for valid tokens.
    """

    def __init__(self, dim=64, heads=4, dim_head=16):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q = self.to_q(x).view(b, n, self.heads, -1)
        k = self.to_k(x).view(b, n, self.heads, -1)
        v = self.to_v(x).view(b, n, self.heads, -1)

        if mask is not None:
            k = k.masked_fill(~mask[:, :, None, None], -torch.finfo(k.dtype).max)

        q = q.softmax(dim=-1)
        k = k.softmax(dim=1)

        context = torch.einsum("bnhd,bnhe->bhde", k, v)
        out = torch.einsum("bnhd,bhde->bnhe", q, context)
        return self.to_out(out.reshape(b, n, -1))
