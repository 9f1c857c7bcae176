import torch
import torch.nn.functional as F
from torch import nn
from einops import rearrange


def look_around(x, pad_value=0):
    """(b, w, n, d) -> (b, w, 3n, d): every window with its left and its right neighbour"""
    w = x.shape[1]
    padded = F.pad(x, (0, 0, 0, 0, 1, 1), value=pad_value)
    return torch.cat([padded[:, i:i + w] for i in range(3)], dim=2)


def pad_to_multiple(t, multiple):
    remainder = -t.shape[1] % multiple
    return F.pad(t, (0, 0, 0, remainder))


class LocalAttention(nn.Module):
    """Bidirectional block-local attention: a window attends to itself and to both its neighbours.

    Any sequence length is accepted.
    """

    def __init__(self, dim=64, heads=4, window_size=8, dropout=0.):
        super().__init__()
        self.heads = heads
        self.window_size = window_size
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        n, h, ws = x.shape[1], self.heads, self.window_size

        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> (b h) n d', h=h) for t in (q, k, v))
        q, k, v = (pad_to_multiple(t, ws) for t in (q, k, v))
        q, k, v = (rearrange(t, 'b (w n) d -> b w n d', n=ws) for t in (q, k, v))

        k, v = look_around(k), look_around(v)
        ticker = torch.arange(q.shape[1] * ws, device=x.device)
        ticker = rearrange(ticker, '(w n) -> 1 w n 1', n=ws)
        key_pos = rearrange(look_around(ticker, pad_value=-1), '1 w n 1 -> 1 w 1 n')

        sim = torch.einsum('b w i d, b w j d -> b w i j', q * self.scale, k)
        sim = sim.masked_fill(key_pos == -1, -torch.finfo(sim.dtype).max)
        attn = self.dropout(sim.softmax(dim=-1))

        out = torch.einsum('b w i j, b w j d -> b w i d', attn, v)
        out = rearrange(out, '(b h) w n d -> b (w n) (h d)', h=h)
        return self.to_out(out[:, :n])
