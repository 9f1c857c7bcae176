import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedQKAttention(nn.Module):
    """Full attention with one projection for queries and keys (Reformer without hashing).

    Keys are the l2-normalised queries. As a token would always match itself best, it may attend to itself only when
    nothing else is available: the diagonal gets -5e4, forbidden positions the lowest value of the dtype.

    attention_mask: [B, T], True for real tokens.
    """

    SELF = -5e4

    def __init__(self, dim=64, heads=4, causal=True):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.causal = causal
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, attention_mask=None):
        b, t, d = x.shape
        qk = self.to_qk(x).view(b, t, self.heads, self.dim_head).transpose(1, 2)
        v = self.to_v(x).view(b, t, self.heads, self.dim_head).transpose(1, 2)
        dots = qk @ F.normalize(qk, dim=-1).transpose(-1, -2) * self.dim_head ** -0.5
        dots = dots.float()

        eye = torch.eye(t, dtype=torch.bool, device=x.device)
        dots = dots.masked_fill(eye, self.SELF)
        lowest = torch.finfo(dots.dtype).min
        if attention_mask is not None:
            dots = dots.masked_fill(~attention_mask.bool()[:, None, None, :], lowest)
        if self.causal:
            dots = dots.masked_fill(torch.ones_like(eye).triu(1), lowest)

        w = dots.softmax(dim=-1).to(v.dtype)
        return self.to_out((w @ v).transpose(1, 2).reshape(b, t, d))
