import torch
import torch.nn as nn


class SinkWindowAttention(nn.Module):
    """Sliding-window attention with one learned sink logit per head.

    The sink takes part in the softmax denominator but carries no value, therefore the visible weights
    of a row add up to less than one. A query at position i sees the keys i - window + 1 ... i.
    """

    def __init__(self, dim=64, num_heads=8, num_kv_heads=2, window=16):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * self.head_dim)
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.out = nn.Linear(num_heads * self.head_dim, dim)

    def forward(self, x):
        b, t, _ = x.shape
        g = self.num_heads // self.num_kv_heads
        qkv = self.qkv(x).view(b, t, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        q, k, v = qkv.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=2)
        q = q.reshape(b, t, self.num_kv_heads, g, self.head_dim)

        qk = torch.einsum("bikgd,bjkd->bkgij", q, k) * self.head_dim ** -0.5
        pos = torch.arange(t, device=x.device)
        dist = pos[:, None] - pos[None, :]
        hidden = (dist < 0) | (dist >= self.window)
        qk = qk.masked_fill(hidden, float("-inf"))

        sink = self.sinks.view(1, self.num_kv_heads, g, 1, 1).expand(b, -1, -1, t, 1).to(qk.dtype)
        w = torch.cat([qk, sink], dim=-1).softmax(dim=-1)[..., :-1]
        y = torch.einsum("bkgij,bjkd->bikgd", w, v)
        return self.out(y.reshape(b, t, -1))
