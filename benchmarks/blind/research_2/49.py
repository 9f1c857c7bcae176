import math

import torch
import torch.nn.functional as F
from torch import nn
from einops import rearrange


def pad_to_multiple(tensor, multiple, dim=-1, value=0):
    seqlen = tensor.shape[dim]
    m = seqlen / multiple
    if m.is_integer():
        return tensor
    remainder = math.ceil(m) * multiple - seqlen
    pad_offset = (0,) * (-1 - dim) * 2
    return F.pad(tensor, (*pad_offset, 0, remainder), value=value)


def look_around(x, backward=1, forward=1, pad_value=-1, dim=2):
    t = x.shape[1]
    dims = (len(x.shape) - dim) * (0, 0)
    padded_x = F.pad(x, (*dims, backward, forward), value=pad_value)
    tensors = [padded_x[:, ind:(ind + t), ...] for ind in range(forward + backward + 1)]
    return torch.cat(tensors, dim=dim)


class LocalAttentionEncoder(nn.Module):
    """Bidirectional local attention for audio frames.

    The sequence is cut into windows of `window_size` frames; a frame attends to its own window and to the
    `look_backward` / `look_forward` windows beside it. Any sequence length is accepted.
    """

    def __init__(self, dim=64, heads=4, window_size=16, look_backward=1, look_forward=1, dropout=0.):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.window_size = window_size
        self.look_backward = look_backward
        self.look_forward = look_forward
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, orig_n, _ = x.shape
        w, pad_value = self.window_size, -1
        around = dict(backward=self.look_backward, forward=self.look_forward, pad_value=pad_value)

        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> (b h) n d', h=self.heads) for t in (q, k, v))
        q, k, v = (pad_to_multiple(t, w, dim=-2) for t in (q, k, v))
        n = q.shape[1]

        ticker = torch.arange(n, device=x.device)
        b_t = rearrange(ticker, '(w n) -> 1 w n', n=w)
        bq, bk, bv = (rearrange(t, 'b (w n) d -> b w n d', n=w) for t in (q, k, v))
        bk = look_around(bk, **around)
        bv = look_around(bv, **around)
        bq_k = look_around(b_t, **around)

        sim = torch.einsum('b w i d, b w j d -> b w i j', bq * self.scale, bk)
        pad_mask = rearrange(bq_k == pad_value, '1 w j -> 1 w 1 j')
        sim = sim.masked_fill(pad_mask, -torch.finfo(sim.dtype).max)

        attn = self.dropout(sim.softmax(dim=-1))
        out = torch.einsum('b w i j, b w j d -> b w i d', attn, bv)
        out = rearrange(out, '(b h) w n d -> b (w n) (h d)', h=self.heads)
        return self.to_out(out[:, :orig_n])
