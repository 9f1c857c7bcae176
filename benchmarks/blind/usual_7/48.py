import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalChunkedAttention(nn.Module):
    """
    Causal local attention in chunks. The queries of a chunk look at their own and at the previous chunk, at most
    ``chunk`` positions back. Cost is linear in the length; any length is accepted.

    x: (B, T, dim)
    """

    def __init__(self, dim: int = 64, heads: int = 4, chunk: int = 8, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        self.chunk = chunk
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

        i = torch.arange(chunk)[:, None] + chunk
        j = torch.arange(2 * chunk)[None, :]
        self.register_buffer("allowed", (j <= i) & (i - j <= chunk), persistent=False)

    def _look_back(self, t):
        """(B, H, n, w, d) -> (B, H, n, 2w, d): every chunk behind its predecessor."""
        prev = F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        return torch.cat([prev, t], dim=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        w = self.chunk
        pad = (-T) % w
        qkv = self.to_qkv(x)
        qkv = F.pad(qkv, (0, 0, 0, pad))
        n = (T + pad) // w
        q, k, v = qkv.view(B, n, w, 3, self.heads, C // self.heads).permute(3, 0, 4, 1, 2, 5)

        k, v = self._look_back(k), self._look_back(v)
        sim = torch.einsum("bhnid,bhnjd->bhnij", q, k) * self.scale
        sim = sim.masked_fill(~self.allowed, -torch.finfo(sim.dtype).max)
        attn = self.dropout(sim.softmax(dim=-1))

        out = torch.einsum("bhnij,bhnjd->bhnid", attn, v)
        out = out.permute(0, 2, 3, 1, 4).reshape(B, n * w, C)[:, :T]
        return self.to_out(out)
