import torch
import torch.nn as nn


class EfficientAttention(nn.Module):
    """Efficient Attention: Attention with Linear Complexities (Shen et al., WACV 2021).

    The keys are normalised over the positions and the queries over the channels,
    then the d x d context is formed first: O(n d^2). Bidirectional.

    mask: bool [B, N], True where the token is valid.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, dropout=0.0):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, -1).transpose(1, 2)
            for f in (self.to_q, self.to_k, self.to_v)
        )

        if mask is not None:
            k = k.masked_fill(~mask[:, None, :, None], -torch.finfo(k.dtype).max)

        q = q.softmax(dim=-1)
        k = k.softmax(dim=-2)

        context = torch.einsum('bhnd,bhne->bhde', k, v)
        out = torch.einsum('bhnd,bhde->bhne', q, context)
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
