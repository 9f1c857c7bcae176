import torch
from torch import nn


class EinsumSelfAttention(nn.Module):
    """Multi-head self-attention written with einsum, heads kept in the last axis of the scores.

    Shapes: b batch, q query position, k key position, h head, e head channel, d model width.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        if dim % num_heads:
            raise ValueError("dim must be a multiple of num_heads")
        e = dim // num_heads
        self.scale = e ** -0.5
        self.wq = nn.Parameter(torch.empty(dim, num_heads, e))
        self.wk = nn.Parameter(torch.empty(dim, num_heads, e))
        self.wv = nn.Parameter(torch.empty(dim, num_heads, e))
        self.wo = nn.Parameter(torch.empty(num_heads, e, dim))
        for w in (self.wq, self.wk, self.wv, self.wo):
            nn.init.normal_(w, std=dim ** -0.5)

    def forward(self, x: torch.Tensor, key_mask: torch.Tensor = None) -> torch.Tensor:
        """x: (b, n, d); key_mask: bool (b, n), True for tokens that may be attended."""
        q = torch.einsum("bqd,dhe->bqhe", x, self.wq)
        k = torch.einsum("bkd,dhe->bkhe", x, self.wk)
        v = torch.einsum("bkd,dhe->bkhe", x, self.wv)

        scores = torch.einsum("bqhe,bkhe->bqkh", q, k) * self.scale
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask[:, None, :, None], -1e9)
        weights = scores.softmax(dim=1)

        mixed = torch.einsum("bqkh,bkhe->bqhe", weights, v)
        return torch.einsum("bqhe,hed->bqd", mixed, self.wo)
