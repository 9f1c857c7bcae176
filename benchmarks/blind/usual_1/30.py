import torch
from torch import nn
from einops import rearrange


class EfficientAttention(nn.Module):
    """Efficient attention with linear complexity (Shen et al., 2018).

        out = softmax_d(Q) (softmax_n(K)^T V)

    The queries are normalised over their channels and the keys over the sequence, so the implied
    n x n matrix has non-negative rows that sum to one without ever being formed.
    Bidirectional only.
    """

    def __init__(self, dim=64, heads=4, dim_head=16):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x, mask=None):
        """mask: (b, n) boolean, True for real tokens."""
        q, k, v = rearrange(self.to_qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)

        if mask is not None:
            k = k.masked_fill(~mask[:, None, :, None], -torch.finfo(k.dtype).max)

        q = q.softmax(dim=-1)
        k = k.softmax(dim=-2)

        context = torch.einsum("b h n d, b h n e -> b h d e", k, v)
        out = torch.einsum("b h d e, b h n d -> b h n e", context, q)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
