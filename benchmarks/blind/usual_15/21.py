import torch
import torch.nn as nn


class MultiQueryAttention(nn.Module):
    """One head of keys, which are the values as well.

    The single shared projection is deliberate (it halves the cache again);
    all heads look at the same `kv`, by broadcasting over the head axis.
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, self.head_dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache=None):
        """cache: (batch, past, head_dim) or None. Returns the output and the new cache."""
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        kv = self.kv(x)
        if cache is not None:
            kv = torch.cat([cache, kv], dim=1)
        total = kv.size(1)
        scores = q @ kv.unsqueeze(1).transpose(2, 3) * self.head_dim ** -0.5
        visible = torch.ones(t, total, dtype=torch.bool, device=x.device).tril(total - t)
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        y = weights @ kv.unsqueeze(1)
        return self.o(y.transpose(1, 2).flatten(2)), kv
