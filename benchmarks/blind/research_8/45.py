import torch
import torch.nn as nn
import torch.nn.functional as F


class ChunkedCausalAttention(nn.Module):
    """Local attention for long autoregressive sequences.

    The sequence is cut into chunks; a token sees its own chunk up to itself and all of the chunk before.
    Any length is accepted.
    """

    def __init__(self, dim=64, num_heads=4, chunk_size=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.chunk = chunk_size
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    @staticmethod
    def _look_back(x):
        return torch.cat((torch.roll(x, shifts=1, dims=2), x), dim=3)

    def forward(self, x):
        b, t, d = x.shape
        pad = (-t) % self.chunk
        h = F.pad(x, (0, 0, 0, pad))
        n = h.size(1) // self.chunk

        q, k, v = (
            z.view(b, n, self.chunk, self.num_heads, self.head_dim).permute(0, 3, 1, 2, 4)
            for z in self.to_qkv(h).chunk(3, dim=-1)
        )
        k, v = self._look_back(k), self._look_back(v)

        own = torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=x.device).tril()
        allowed = torch.cat((torch.ones_like(own), own), dim=-1)
        scores = torch.einsum("bhnid,bhnjd->bhnij", q, k) * self.head_dim ** -0.5
        scores = scores.masked_fill(~allowed, float("-inf"))
        y = torch.einsum("bhnij,bhnjd->bhnid", scores.softmax(dim=-1), v)
        y = y.permute(0, 2, 3, 1, 4).reshape(b, n * self.chunk, d)
        return self.to_out(y[:, :t])
