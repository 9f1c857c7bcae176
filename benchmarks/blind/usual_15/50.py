"""Local attention over chunks with one chunk of look-back."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalAttention(nn.Module):
    """Causal attention inside a chunk and to the chunk before it.

    The sequence is cut into chunks of `chunk` tokens (padded on the right when it
    does not divide). A query sees every earlier token of its own chunk, itself
    and all tokens of the preceding chunk.
    """

    def __init__(self, dim=64, num_heads=4, chunk=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.chunk = chunk
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def _look_back(self, t):
        # (b, h, chunks, w, d) -> (b, h, chunks, 2w, d)
        prev = F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        return torch.cat([prev, t], dim=3)

    def forward(self, x):
        b, n, c = x.shape
        w = self.chunk
        extra = (-n) % w
        x = F.pad(x, (0, 0, 0, extra))
        m = (n + extra) // w

        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (
            t.view(b, m, w, self.num_heads, self.head_dim).permute(0, 3, 1, 2, 4) for t in (q, k, v)
        )
        k, v = self._look_back(k), self._look_back(v)

        scores = torch.einsum("bhmid,bhmjd->bhmij", q, k) * self.head_dim ** -0.5
        i = torch.arange(w, device=x.device)[:, None] + w
        j = torch.arange(2 * w, device=x.device)[None, :]
        scores = scores.masked_fill(j > i, float("-inf"))
        attn = scores.softmax(dim=-1)

        out = torch.einsum("bhmij,bhmjd->bhmid", attn, v)
        out = out.permute(0, 2, 3, 1, 4).reshape(b, m * w, c)[:, :n]
        return self.to_out(out)
