import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange


class LocalCausalAttention(nn.Module):
    """Block-local causal attention for long autoregressive sequences.

    The sequence is cut into windows. Each token attends to the earlier tokens of its own window and to the
    ``window_size`` tokens that precede it, which cost one look at the previous window.

    Args:
        dim: model dimension
        heads: number of heads
        window_size: tokens per window
    """

    def __init__(self, dim=64, heads=4, window_size=8, dropout=0.0):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.window_size = window_size
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.attn_dropout = nn.Dropout(dropout)

    def look_around(self, t):
        # (b, h, windows, w, d) -> (b, h, windows, 2w, d)
        return torch.cat((torch.roll(t, shifts=1, dims=2), t), dim=3)

    def forward(self, x):
        n, w = x.shape[1], self.window_size
        pad = (-n) % w
        x = F.pad(x, (0, 0, 0, pad))

        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b (c w) (h d) -> b h c w d", w=w, h=self.heads) for t in (q, k, v))
        k, v = self.look_around(k), self.look_around(v)

        sim = torch.einsum("bhcid,bhcjd->bhcij", q * self.scale, k)

        i = torch.arange(w, device=x.device)[:, None] + w
        j = torch.arange(2 * w, device=x.device)[None, :]
        allowed = (j <= i) & (j >= i - w)
        sim = sim.masked_fill(~allowed, -torch.finfo(sim.dtype).max)

        attn = self.attn_dropout(sim.softmax(dim=-1))
        out = torch.einsum("bhcij,bhcjd->bhcid", attn, v)
        out = rearrange(out, "b h c w d -> b (c w) (h d)")
        return self.to_out(out[:, :n])
