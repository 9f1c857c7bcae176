import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalCausalAttention(nn.Module):
    """Causal attention to the last ``window`` tokens (itself included), computed in chunks.

    The sequence is cut into chunks of ``window`` tokens and every chunk attends to itself and
    to the chunk before it.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def look_back(self, t: torch.Tensor) -> torch.Tensor:
        previous = torch.roll(t, shifts=1, dims=2)
        return torch.cat((previous, t), dim=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        w = self.window
        pad = -n % w
        if pad:
            x = F.pad(x, (0, 0, 0, pad))
        chunks = x.shape[1] // w

        q, k, v = (
            t.view(b, chunks, w, self.num_heads, self.head_dim).permute(0, 3, 1, 2, 4)
            for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        k, v = self.look_back(k), self.look_back(v)

        sim = torch.einsum("bhcid,bhcjd->bhcij", q, k) * self.head_dim**-0.5
        i = torch.arange(w, device=x.device)[:, None] + w
        j = torch.arange(2 * w, device=x.device)[None, :]
        allowed = (j <= i) & (j > i - w)
        sim = sim.masked_fill(~allowed, float("-inf"))
        attn = self.dropout(sim.softmax(dim=-1))

        out = torch.einsum("bhcij,bhcjd->bhcid", attn, v)
        out = out.permute(0, 2, 3, 1, 4).reshape(b, chunks * w, c)
        return self.to_out(out[:, :n])
