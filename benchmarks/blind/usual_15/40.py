import torch
import torch.nn as nn


class SeedPooling(nn.Module):
    """k learned seeds read a set and return k vectors, (batch, k, dim).

    The seeds are the queries as they stand: nothing projects them, and nothing
    projects what the heads return. Keys get a projection, values are slices of the
    input, so that each output lies in the convex hull of the (sliced) elements.

    absent: (batch, n), True for elements that are not there.
    """

    def __init__(self, dim=64, num_heads=4, k=3):
        super().__init__()
        self.num_heads = num_heads
        self.seeds = nn.Parameter(torch.randn(num_heads, k, dim // num_heads))
        self.key = nn.Linear(dim, dim)

    def forward(self, x, absent=None):
        b, n, c = x.shape
        keys = self.key(x).view(b, n, self.num_heads, -1)
        vals = x.reshape(b, n, self.num_heads, -1)
        s = torch.einsum("hkd,bnhd->bhkn", self.seeds, keys) / keys.size(-1) ** 0.5
        if absent is not None:
            s = s.masked_fill(absent.view(b, 1, 1, n), float("-inf"))
            # an empty set pools to zero
            w = torch.where(absent.all(1).view(b, 1, 1, 1), torch.zeros_like(s), s.softmax(-1))
        else:
            w = s.softmax(-1)
        return torch.einsum("bhkn,bnhd->bkhd", w, vals).reshape(b, -1, c)
