import torch
import torch.nn.functional as F
from torch import nn


class SharedKVAttention(nn.Module):
    """Multi-query causal attention in which keys and values are the same tensor.

    There is a single key/value head and it comes from a single projection, so the cache holds
    one head_dim vector per token. The key is normalised before the dot product; the vector that
    is summed up is the raw one.
    """

    def __init__(self, dim, num_heads=8, head_dim=None):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim or dim // num_heads
        self.to_q = nn.Linear(dim, self.num_heads * self.head_dim, bias=False)
        self.to_kv = nn.Linear(dim, self.head_dim, bias=False)
        self.key_norm = nn.LayerNorm(self.head_dim)
        self.to_out = nn.Linear(self.num_heads * self.head_dim, dim, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.to_q(x).view(b, n, self.num_heads, self.head_dim)
        kv = self.to_kv(x)

        sim = torch.einsum("bihd,bjd->bhij", q * self.head_dim ** -0.5, self.key_norm(kv))
        causal = torch.ones((n, n), dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(causal, -torch.finfo(sim.dtype).max)
        attn = F.softmax(sim, dim=-1)

        out = torch.einsum("bhij,bjd->bihd", attn, kv)
        return self.to_out(out.reshape(b, n, -1))
