import torch
import torch.nn as nn


class SharedKVAttention(nn.Module):
    """Multi-query attention in which one projection serves as key and as value.

    The single key/value head of size ``head_dim`` halves the decoding cache once more with
    respect to MQA. Keys are RMS-normalised after the projection, values are the raw projection.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, head_dim: int = 32, causal: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal
        self.to_q = nn.Linear(dim, num_heads * head_dim, bias=False)
        self.to_kv = nn.Linear(dim, head_dim, bias=False)
        self.key_gain = nn.Parameter(torch.ones(head_dim))
        self.to_out = nn.Linear(num_heads * head_dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q = self.to_q(x).view(b, n, self.num_heads, self.head_dim)
        kv = self.to_kv(x)
        k = kv * torch.rsqrt(kv.pow(2).mean(-1, keepdim=True) + 1e-6) * self.key_gain

        sim = torch.einsum("bihd,bjd->bhij", q, k) / self.head_dim**0.5
        if self.causal:
            future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            sim = sim.masked_fill(future, -torch.finfo(sim.dtype).max)
        out = torch.einsum("bhij,bjd->bihd", sim.softmax(dim=-1), kv)
        return self.to_out(out.flatten(2))
