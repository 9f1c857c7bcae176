import torch
from torch import nn
import torch.nn.functional as F


def pad_to_multiple(t, multiple, dim, value=0):
    seqlen = t.shape[dim]
    remainder = -seqlen % multiple
    if remainder == 0:
        return t
    pad_offset = (0,) * ((t.ndim - 1 - dim) * 2)
    return F.pad(t, (*pad_offset, 0, remainder), value=value)


def look_back(x, pad_value):
    """x: (..., windows, w, d) -> (..., windows, 2w, d): the window before, then the window itself."""
    prev = F.pad(x, (0, 0, 0, 0, 1, 0), value=pad_value)[..., :-1, :, :]
    return torch.cat((prev, x), dim=-2)


class LocalAttention(nn.Module):
    """Causal attention in windows of ``window_size``, each looking back at the window before it.

    exact_windowsize: limit every query to itself and the ``window_size`` tokens before it;
    otherwise a query sees all past tokens of its own and the preceding window.
    mask: (b, n) bool, True for real tokens.
    """

    def __init__(self, dim=256, heads=8, dim_head=32, window_size=16, exact_windowsize=False, dropout=0.):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.window_size = window_size
        self.exact_windowsize = exact_windowsize
        self.scale = dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        # one learned bias per head and distance; distances inside two windows are 0 .. 2w - 1
        self.rel_bias = nn.Embedding(2 * window_size, heads)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        w, h = self.window_size, self.heads

        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, h, -1).transpose(1, 2) for t in qkv)
        q, k, v = (pad_to_multiple(t, w, dim=2) for t in (q, k, v))
        n_pad = q.shape[2]
        windows = n_pad // w

        q, k, v = (t.reshape(b, h, windows, w, -1) for t in (q, k, v))
        q = q * self.scale
        k, v = look_back(k, 0.), look_back(v, 0.)

        pos = torch.arange(n_pad, device=x.device).view(windows, w, 1)
        q_pos = pos                                          # (windows, w, 1)
        k_pos = look_back(pos, -1).transpose(-1, -2)         # (windows, 1, 2w), -1 before the first window
        dist = q_pos - k_pos

        sim = torch.einsum('bhwid,bhwjd->bhwij', q, k)
        bias = self.rel_bias(dist.clamp(0, 2 * w - 1))       # (windows, w, 2w, h)
        sim = sim + bias.permute(3, 0, 1, 2)

        keep = (dist >= 0) & (k_pos >= 0)
        if self.exact_windowsize:
            keep = keep & (dist <= w)
        keep = keep[None, None]
        if mask is not None:
            key_ok = pad_to_multiple(mask.bool().unsqueeze(-1), w, dim=1, value=False)
            key_ok = look_back(key_ok.view(b, windows, w, 1).long(), 0).bool().transpose(-1, -2)
            keep = keep & key_ok[:, None]

        # finite fill: a padding query with nothing to see stays finite
        sim = sim.masked_fill(~keep, -torch.finfo(sim.dtype).max)
        attn = self.dropout(sim.softmax(dim=-1))

        out = torch.einsum('bhwij,bhwjd->bhwid', attn, v)
        out = out.reshape(b, h, n_pad, -1)[:, :, :n]
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))
