import torch
import torch.nn.functional as F
from torch import nn


class LocalAttention(nn.Module):
    """
    Causal local attention.

    The sequence is cut into blocks of ``window_size``; a block attends to itself and to the block before.
    A token sees itself and the ``window_size - 1`` tokens to its left.
    """

    def __init__(self, dim=64, num_heads=4, window_size=8, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window_size = window_size
        self.scale = self.head_dim ** -0.5
        self.dropout = nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def look_back(self, t):
        # (b, h, blocks, w, d) -> (b, h, blocks, 2w, d)
        previous = torch.roll(t, shifts=1, dims=2)
        return torch.cat((previous, t), dim=3)

    def forward(self, x):
        b, n, c = x.shape
        w = self.window_size
        pad = -n % w
        if pad:
            x = F.pad(x, (0, 0, 0, pad))
        blocks = x.shape[1] // w

        qkv = self.to_qkv(x).view(b, blocks, w, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(3, 0, 4, 1, 2, 5).unbind(0)
        k, v = self.look_back(k), self.look_back(v)

        sim = torch.einsum("bhuid,bhujd->bhuij", q * self.scale, k)
        i = torch.arange(w, device=x.device)[:, None] + w
        j = torch.arange(2 * w, device=x.device)[None, :]
        outside = (j > i) | (i - j >= w)
        sim = sim.masked_fill(outside, -torch.finfo(sim.dtype).max)
        attn = self.dropout(sim.softmax(dim=-1))

        out = torch.einsum("bhuij,bhujd->bhuid", attn, v)
        out = out.permute(0, 2, 3, 1, 4).reshape(b, blocks * w, c)
        return self.to_out(out[:, :n])
