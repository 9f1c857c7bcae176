import torch
import torch.nn as nn
import torch.nn.functional as F


class QKNormAttention(nn.Module):
    """Causal attention with L2-normalised queries and keys and a learned temperature per head
    (Henry et al., 2020, "Query-Key Normalization for Transformers")."""

    def __init__(self, dim: int = 64, num_heads: int = 4, init_temperature: float = 10.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), init_temperature))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)

        q = F.normalize(q, dim=-2)
        k = F.normalize(k, dim=-2)

        sim = (q @ k.transpose(-2, -1)) * self.temperature
        causal_mask = torch.ones((n, n), dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)

        out = (attn @ v).transpose(1, 2).reshape(b, n, c)
        return self.to_out(out)
