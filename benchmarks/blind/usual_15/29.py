"""Transformer-XL attention with a memory of earlier states."""
import torch
import torch.nn as nn


class RelativeAttention(nn.Module):
    """Scores are (q + u)·k + (q + v)·r, r being the projection of a sinusoid of the distance.

    x:   (batch, time, dim)
    mem: (batch, mem_len, dim) or None; no gradient flows into it.
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_net = nn.Linear(dim, dim, bias=False)
        self.kv_net = nn.Linear(dim, 2 * dim, bias=False)
        self.r_net = nn.Linear(dim, dim, bias=False)
        self.o_net = nn.Linear(dim, dim, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(num_heads, self.head_dim))
        self.r_r_bias = nn.Parameter(torch.zeros(num_heads, self.head_dim))
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0.0, dim, 2.0) / dim)), persistent=False)

    @staticmethod
    def rel_shift(x):
        b, h, t, s = x.shape
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1)
        return x.view(b, h, s + 1, t)[:, :, 1:].reshape(b, h, t, s)

    def forward(self, x, mem=None):
        b, t, c = x.shape
        full = x if mem is None else torch.cat([mem.detach(), x], dim=1)
        s = full.size(1)
        q = self.q_net(x).view(b, t, self.num_heads, self.head_dim)
        k, v = self.kv_net(full).view(b, s, 2, self.num_heads, self.head_dim).unbind(2)

        # distances s-1, ..., 1, 0
        dist = torch.arange(s - 1, -1, -1.0, device=x.device)
        ang = torch.outer(dist, self.inv_freq)
        r = self.r_net(torch.cat([ang.sin(), ang.cos()], dim=-1)).view(s, self.num_heads, self.head_dim)

        ac = torch.einsum("bihd,bjhd->bhij", q + self.r_w_bias, k)
        bd = torch.einsum("bihd,jhd->bhij", q + self.r_r_bias, r)
        score = (ac + self.rel_shift(bd)) * self.head_dim ** -0.5
        # whatever the shift brings in from the next row lies above this diagonal
        future = torch.ones(t, s, dtype=torch.bool, device=x.device).triu(1 + s - t)
        prob = score.masked_fill(future, float("-inf")).softmax(dim=-1)
        return self.o_net(torch.einsum("bhij,bjhd->bihd", prob, v).reshape(b, t, c))
